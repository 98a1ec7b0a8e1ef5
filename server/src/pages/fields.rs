//! The fields of a form whose names depend on what is there, as texts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::app::idempotency::Repeat;

/// The fields of a form, without its token.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fields(BTreeMap<String, String>);

impl Fields {
    /// The text of a field without the blanks around it; empty where there is no such field.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |text| text.trim())
    }

    /// Whether there is such a field.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether it is to be saved, and not only tried.
    pub fn saves(&self) -> bool {
        self.text("do") == "save"
    }

    /// The same press of the button twice is one change; the key comes with the form. Who goes back
    /// to that form and sends other values makes another change: they are a part of the key.
    pub fn repeat(&self, route: &str) -> Repeat {
        let key = self.text("idempotency_key");
        if key.parse::<domain::ids::RequestId>().is_err() {
            return Repeat::none();
        }
        let body = serde_json::to_string(&self.0).expect("texts are plain data");
        Repeat::keyed(route.to_owned(), format!("{key} {body}"), body.as_bytes())
    }
}
