//! What pages hold: tags and runs of tags.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bits of a tag word that hold the index of the page.
const INDEX_BITS: u32 = 16;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// The word that `write` stores at the start of page `page` of a region, pin or file.
#[must_use]
pub const fn tag_word(value: u16, page: u64) -> u64 {
    ((value as u64) << INDEX_BITS) | (page & INDEX_MASK)
}

/// The word that `fill` stores at the start of every page.
#[must_use]
pub const fn fill_word(value: u16) -> u64 {
    ((value as u64) << INDEX_BITS) | INDEX_MASK
}

/// What the word at the start of a page says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tag {
    /// `0`: the word is zero.
    Zero,
    /// `V`: written to this page.
    Own(u64),
    /// `V@i`: written to another page.
    Other {
        /// The value.
        value: u64,
        /// Index of the page that it was written to, modulo 2^16.
        index: u64,
    },
    /// `V@*`: filled.
    Fill(u64),
}

impl Tag {
    /// Reads the word at the start of page `page`.
    #[must_use]
    pub const fn of(word: u64, page: u64) -> Self {
        let (value, index) = (word >> INDEX_BITS, word & INDEX_MASK);
        if word == 0 {
            Self::Zero
        } else if index == page & INDEX_MASK {
            Self::Own(value)
        } else if index == INDEX_MASK {
            Self::Fill(value)
        } else {
            Self::Other { value, index }
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("0"),
            Self::Own(value) => write!(f, "{value}"),
            Self::Other { value, index } => write!(f, "{value}@{index}"),
            Self::Fill(value) => write!(f, "{value}@*"),
        }
    }
}

impl Serialize for Tag {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Tag {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let number = |digits: &str| {
            digits.parse().map_err(|_| D::Error::custom(format_args!("bad tag {text:?}")))
        };
        Ok(match text.split_once('@') {
            Some((value, "*")) => Self::Fill(number(value)?),
            Some((value, index)) => Self::Other { value: number(value)?, index: number(index)? },
            None if text == "0" => Self::Zero,
            None => Self::Own(number(&text)?),
        })
    }
}

/// `[first, count, "T"]`: consecutive pages with the same tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentRun(
    /// First page.
    pub u64,
    /// Number of pages.
    pub u64,
    /// Their tag.
    pub Tag,
);

/// Joins the words at the start of pages, in the order they were read, into runs.
#[must_use]
pub fn content_runs(words: impl IntoIterator<Item = (u64, u64)>) -> Vec<ContentRun> {
    let mut runs: Vec<ContentRun> = Vec::new();
    for (page, word) in words {
        let tag = Tag::of(word, page);
        match runs.last_mut() {
            Some(ContentRun(first, count, last)) if *last == tag && *first + *count == page => {
                *count += 1;
            }
            _ => runs.push(ContentRun(page, 1, tag)),
        }
    }
    runs
}

/// The answer of `expect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// Process.
    pub p: String,
    /// No page was bad.
    pub ok: bool,
    /// Number of pages that hold something else.
    pub bad: u64,
}

impl Expect {
    /// Checks the words at the start of pages against the tag of `value`, or with `fill` its
    /// fill tag. A `value` of 0 means zero.
    #[must_use]
    pub fn check(
        p: impl Into<String>,
        value: u16,
        fill: bool,
        words: impl IntoIterator<Item = (u64, u64)>,
    ) -> Self {
        let want = |page| match (value, fill) {
            (0, _) => 0,
            (_, true) => fill_word(value),
            (_, false) => tag_word(value, page),
        };
        let bad = words.into_iter().filter(|&(page, word)| word != want(page)).count() as u64;
        Self { p: p.into(), ok: bad == 0, bad }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_equal_tags_of_consecutive_pages() {
        let words = [
            (0, tag_word(1, 0)),
            (1, tag_word(1, 1)),
            (2, fill_word(1)),
            (3, fill_word(1)),
            (4, tag_word(2, 9)),
            (5, tag_word(2, 9)),
            (6, 0),
            (8, 0),
        ];
        let json = serde_json::to_string(&content_runs(words)).unwrap();
        assert_eq!(json, r#"[[0,2,"1"],[2,2,"1@*"],[4,2,"2@9"],[6,1,"0"],[8,1,"0"]]"#);
    }

    #[test]
    fn the_index_of_a_tag_wraps_at_16_bits() {
        let page = (1 << 16) + 7;
        assert_eq!(Tag::of(tag_word(3, page), page), Tag::Own(3));
        assert_eq!(Tag::of(tag_word(3, 8), page), Tag::Other { value: 3, index: 8 });
    }

    #[test]
    fn a_word_that_no_write_stored_is_shown_whole() {
        assert_eq!(Tag::of(u64::MAX, 0).to_string(), format!("{}@*", u64::MAX >> 16));
        assert_eq!(Tag::of(5, 0), Tag::Other { value: 0, index: 5 });
    }

    #[test]
    fn expect_counts_bad_pages() {
        let words = [(0, tag_word(1, 0)), (1, fill_word(1)), (2, 0)];
        assert_eq!(Expect::check("p0", 1, false, words).bad, 2);
        assert_eq!(Expect::check("p0", 1, true, words).bad, 2);
        assert_eq!(Expect::check("p0", 0, true, words).bad, 2);
        assert!(Expect::check("p0", 1, false, [(9, tag_word(1, 9))]).ok);
    }
}
