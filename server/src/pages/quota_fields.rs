//! A quota as the fields of a form: five texts, each empty for none.

use std::collections::BTreeMap;

use domain::{FieldError, MilliGpu};
use web::views::{QUOTA_KEYS, Refusal};

use super::fields::Fields;
use super::refusal;
use crate::app::quotas::NewQuota;

/// The numbers of a quota as they are typed, in the order of [`QUOTA_KEYS`].
pub type Texts = [String; 5];

/// A quota as the form shows it.
pub fn texts(quota: &NewQuota) -> Texts {
    let some = |amount: Option<MilliGpu>| amount.map_or_else(String::new, |a| a.to_string());
    [
        quota.guaranteed.to_string(),
        some(quota.limit),
        some(quota.lend_limit),
        quota.weight.to_string(),
        some(quota.max_per_user),
    ]
}

/// What a form has in the five fields below a name; a number that is written otherwise, as `4.0`,
/// is the same number.
pub fn typed(fields: &Fields, prefix: &str) -> Texts {
    QUOTA_KEYS.map(|key| {
        let text = fields.text(&format!("{prefix}/{key}"));
        text.parse::<MilliGpu>()
            .map_or_else(|_| text.to_owned(), |amount| amount.to_string())
    })
}

/// Whether nothing at all is typed.
pub fn blank(texts: &Texts) -> bool {
    texts.iter().all(String::is_empty)
}

/// The quota that is typed, or what is wrong with each field.
pub fn quota(texts: &Texts) -> Result<NewQuota, BTreeMap<&'static str, Refusal>> {
    let mut wrong = BTreeMap::new();
    let mut keep = |key: &'static str, text: &str| {
        let fault = FieldError::new(key, text, "a number");
        wrong.insert(key, refusal::of_value(&fault, key.to_owned()));
    };
    let mut amount = |at: usize| {
        let text = texts[at].as_str();
        let read = text.parse::<MilliGpu>();
        read.inspect_err(|_| keep(QUOTA_KEYS[at], text)).ok()
    };
    let guaranteed = amount(0);
    let mut optional = |at: usize| match texts[at].as_str() {
        "" => Some(None),
        _ => amount(at).map(Some),
    };
    let (limit, lend_limit, max_per_user) = (optional(1), optional(2), optional(4));
    let weight = match texts[3].as_str() {
        "" => Some(domain::quantity::Weight::whole(1)),
        text => text.parse().inspect_err(|_| keep(QUOTA_KEYS[3], text)).ok(),
    };
    match (guaranteed, limit, lend_limit, weight, max_per_user) {
        (Some(guaranteed), Some(limit), Some(lend_limit), Some(weight), Some(max_per_user)) => {
            Ok(NewQuota {
                guaranteed,
                limit,
                lend_limit,
                weight,
                max_per_user,
            })
        }
        _ => Err(wrong),
    }
}

/// The place of a refused value among quotas that were sent together, from `quotas[3].quota.limit`.
pub fn place_of(field: &str) -> Option<(usize, &'static str)> {
    let (index, rest) = field.strip_prefix("quotas[")?.split_once(']')?;
    let key = rest.rsplit('.').next()?;
    let key = QUOTA_KEYS.into_iter().find(|known| *known == key);
    Some((index.parse().ok()?, key.unwrap_or(QUOTA_KEYS[0])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(texts: [&str; 5]) -> Texts {
        texts.map(str::to_owned)
    }

    #[test]
    fn what_is_typed_is_read_and_what_is_wrong_is_named_by_its_field() {
        let read = quota(&row(["4", "", "2.5", "", "1"])).expect("a quota");
        assert_eq!(texts(&read), row(["4", "", "2.5", "1", "1"]));
        let wrong = quota(&row(["", "x", "", "-1", "2"])).expect_err("three are wrong");
        let keys: Vec<_> = wrong.keys().copied().collect();
        assert_eq!(keys, ["guaranteed", "limit", "weight"]);
    }

    #[test]
    fn a_refusal_of_one_of_many_is_found_by_its_path() {
        assert_eq!(place_of("quotas[3].quota.limit"), Some((3, "limit")));
        assert_eq!(place_of("quotas[0].team"), Some((0, "guaranteed")));
        assert_eq!(place_of("guaranteed"), None);
    }
}
