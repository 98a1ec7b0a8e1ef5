//! Pages of lists: a bound on how much is given at once, and an opaque cursor to go on from.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::AppError;

/// Items of a page when nobody says how many.
pub const PAGE_ITEMS_DEFAULT: u32 = 100;
/// Most items of a page; bounds the time and memory that one request takes.
pub const PAGE_ITEMS_MAX: u32 = 500;
/// Longest cursor; ours are far shorter.
const CURSOR_CHARS_MAX: usize = 512;

/// What a person asks of a list.
#[derive(Debug, Clone, Default)]
pub struct PageAsk {
    limit: u32,
    cursor: Option<String>,
}

impl PageAsk {
    /// Checks `limit`; the cursor is checked by [`PageAsk::after`].
    pub fn new(limit: Option<u32>, cursor: Option<String>) -> Result<Self, AppError> {
        let limit = limit.unwrap_or(PAGE_ITEMS_DEFAULT);
        if !(1..=PAGE_ITEMS_MAX).contains(&limit) {
            return Err(AppError::invalid(
                "limit",
                limit,
                format!("1 to {PAGE_ITEMS_MAX}"),
            ));
        }
        Ok(Self { limit, cursor })
    }

    /// Everything that fits on one page, from the beginning.
    pub fn first() -> Self {
        Self {
            limit: PAGE_ITEMS_MAX,
            cursor: None,
        }
    }

    /// Rows to read: one more than is shown tells whether there are more.
    pub fn rows_wanted(&self) -> i64 {
        i64::from(self.limit) + 1
    }

    /// The key after which the page begins, from a cursor that a list of this `kind` gave.
    pub fn after<K: DeserializeOwned>(&self, kind: &str) -> Result<Option<K>, AppError> {
        let Some(cursor) = &self.cursor else {
            return Ok(None);
        };
        let refused = || {
            AppError::invalid(
                "cursor",
                cursor,
                "a next_cursor of this list, or none to begin with the first page",
            )
        };
        if cursor.len() > CURSOR_CHARS_MAX {
            return Err(refused());
        }
        let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| refused())?;
        let (of, key): (String, K) = serde_json::from_slice(&bytes).map_err(|_| refused())?;
        if of == kind {
            Ok(Some(key))
        } else {
            Err(refused())
        }
    }
}

/// A part of a list.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// The cursor of the next page; null on the last.
    pub next_cursor: Option<String>,
}

/// Cuts what was read to the page, with the cursor made of its last item's key.
pub fn cut<T, K: Serialize>(
    ask: &PageAsk,
    kind: &str,
    mut items: Vec<T>,
    key: impl FnOnce(&T) -> K,
) -> Page<T> {
    let limit = ask.limit as usize;
    let more = items.len() > limit;
    items.truncate(limit);
    let next_cursor = items.last().filter(|_| more).map(|last| {
        let text = serde_json::to_vec(&(kind, key(last))).expect("a key is plain data");
        URL_SAFE_NO_PAD.encode(text)
    });
    Page { items, next_cursor }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_to_the_next_page_of_its_own_list_only() {
        let ask = PageAsk::new(Some(2), None).expect("a small page");
        let page = cut(&ask, "team", vec!["a", "b", "c"], |t| (*t).to_owned());
        assert_eq!(page.items, ["a", "b"]);
        let next = PageAsk::new(Some(2), page.next_cursor).expect("a small page");
        assert_eq!(
            next.after::<String>("team").expect("ours"),
            Some("b".into())
        );
        assert!(next.after::<String>("pool").is_err());
        for bad in ["x", "%00", "bm90IGpzb24", &"A".repeat(600)] {
            let ask = PageAsk::new(None, Some((*bad).to_owned())).expect("read later");
            assert!(ask.after::<String>("team").is_err(), "{bad}");
        }
    }
}
