//! Forms of pages, as a browser without scripts fills them in and sends them.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::json;
use sqlx::PgPool;

use super::fixture::Server;
use super::fleet::turn;
use super::pages::{Browser, Page, give_password};

pub async fn browser(owner: &PgPool, server: &Server, name: &str) -> Browser {
    give_password(owner, server.users[name]).await;
    let mut browser = Browser::new(&server.app);
    browser.sign_in(name).await;
    browser
}

/// The fields of a page's form, as a browser without scripts would send them.
#[derive(Debug, Clone)]
pub struct Form {
    pub action: String,
    fields: BTreeMap<String, String>,
}

impl Form {
    /// The form with this address.
    pub fn of(page: &Page, action: &str) -> Self {
        let opening = format!(" action=\"{action}\"");
        let form = page
            .html
            .split("<form")
            .skip(1)
            .map(|form| form.split("</form>").next().expect("a part"))
            .find(|form| {
                let tag = form.split('>').next().expect("a tag");
                tag.contains(&opening)
            })
            .unwrap_or_else(|| panic!("no form for {action} in {}", page.html));
        let mut fields = BTreeMap::new();
        for tag in form.split("<input").skip(1) {
            let tag = tag.split('>').next().expect("a tag");
            let off = ["checkbox", "radio"].contains(&attribute(tag, "type").as_str())
                && !tag.contains(" checked");
            let name = attribute(tag, "name");
            if !name.is_empty() && !off {
                fields.insert(name, attribute(tag, "value"));
            }
        }
        for select in form.split("<select").skip(1) {
            let select = select.split("</select>").next().expect("a part");
            let options: Vec<&str> = select.split("<option").skip(1).collect();
            let chosen = options
                .iter()
                .find(|option| {
                    option
                        .split('>')
                        .next()
                        .expect("a tag")
                        .contains(" selected")
                })
                .or(options.first());
            if let Some(option) = chosen {
                fields.insert(attribute(select, "name"), attribute(option, "value"));
            }
        }
        Self {
            action: action.to_owned(),
            fields,
        }
    }

    pub fn value(&self, name: &str) -> &str {
        self.fields
            .get(name)
            .unwrap_or_else(|| panic!("no field {name} in {self:?}"))
    }

    /// The same with this field filled in.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The same without a field, as of a box that is not ticked.
    pub fn without(mut self, name: &str) -> Self {
        self.fields.remove(name);
        self
    }

    pub async fn send(&self, browser: &mut Browser, button: &str) -> Page {
        let mut pairs: Vec<String> = self
            .fields
            .iter()
            .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
            .collect();
        if !button.is_empty() {
            pairs.push(format!("do={button}"));
        }
        browser.post(&self.action, &pairs.join("&")).await
    }

    /// Both buttons answer a value of a field with a mark at the field of that id.
    pub async fn marks(&self, browser: &mut Browser, (field, value): (&str, &str), id: &str) {
        for button in ["try", "save"] {
            let form = self.clone().with(field, value);
            let refused = form.send(browser, button).await;
            assert!(
                refused.html.contains(&format!("id=\"{id}-e\"")),
                "{field} {button}: {}",
                refused.html
            );
        }
    }
}

fn attribute(tag: &str, name: &str) -> String {
    let tag = tag.split('>').next().expect("a tag");
    let value = tag.split(&format!(" {name}=\"")).nth(1);
    let value = value.and_then(|rest| rest.split('"').next()).unwrap_or("");
    value.replace("&amp;", "&")
}

fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// What stands on a page from a mark to the end of its element.
pub fn part<'p>(page: &'p Page, from: &str, to: &str) -> &'p str {
    let rest = page.html.split_once(from);
    let rest = rest
        .unwrap_or_else(|| panic!("no {from} in {}", page.html))
        .1;
    rest.split(to).next().expect("a part")
}

pub async fn run(server: &Server, team: &str, gpus: u32) {
    let client = server.client(&format!("{team}-member"));
    let spec = json!({"name": format!("train-{team}"), "command": ["true"], "preemptible": true, "per_worker": {"gpus": gpus}});
    let job = client.post(&format!("/teams/{team}/jobs"), spec).await;
    job.expect(StatusCode::CREATED);
    turn(&server.app).await;
}
