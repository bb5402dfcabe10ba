//! Reclaim on request: so many bytes of a group of processes, before there is need.

use crate::balance::{Balance, shrink_lists};
use crate::{ReclaimOf, ReclaimPlatform, UnmapPolicy};
use core::fmt;
use core::str::FromStr;
use mm_arch::Arch;
use mm_vma::Interrupt;

/// Fruitless attempts before the last one.
const RETRIES: u32 = 16;

/// Which kinds of memory are reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swappiness {
    /// So much of 200 is looked for in memory that swap stands behind, the rest among pages
    /// of files: 0 for files only, 100 for both alike.
    Weight(u8),
    /// Only memory that swap stands behind.
    AnonOnly,
}

impl Default for Swappiness {
    fn default() -> Self {
        Swappiness::Weight(60)
    }
}

/// What is asked for: `512M`, `1G swappiness=max` (rule PROACT-01).
///
/// # Example
///
/// ```
/// use mm_reclaim::{ReclaimRequest, Swappiness};
/// let request: ReclaimRequest = "64K swappiness=100".parse()?;
/// assert_eq!(request.bytes, 64 << 10);
/// assert_eq!(request.swappiness, Swappiness::Weight(100));
/// assert!("64K please".parse::<ReclaimRequest>().is_err());
/// # Ok::<(), mm_reclaim::ReclaimError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReclaimRequest {
    /// How much; what is left over of a page does not count.
    pub bytes: u64,
    /// Of what.
    pub swappiness: Swappiness,
}

impl FromStr for ReclaimRequest {
    type Err = ReclaimError;

    fn from_str(s: &str) -> Result<Self, ReclaimError> {
        let mut words = s.split_ascii_whitespace();
        let bytes = words.next().and_then(parse_bytes).ok_or(ReclaimError::Invalid)?;
        let mut request = ReclaimRequest { bytes, swappiness: Swappiness::default() };
        for word in words {
            let value = word.strip_prefix("swappiness=").ok_or(ReclaimError::Invalid)?;
            request.swappiness = match value {
                "max" => Swappiness::AnonOnly,
                _ => Swappiness::Weight(
                    parse_number(value)
                        .and_then(|n| u8::try_from(n).ok())
                        .filter(|n| *n <= 200)
                        .ok_or(ReclaimError::Invalid)?,
                ),
            };
        }
        Ok(request)
    }
}

/// Digits and nothing else.
fn parse_number(s: &str) -> Option<u64> {
    s.bytes().all(|b| b.is_ascii_digit()).then(|| s.parse().ok())?
}
/// A number of bytes, with a suffix for powers of 1024.
fn parse_bytes(s: &str) -> Option<u64> {
    let shift = match s.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        _ => 0,
    };
    let digits = if shift > 0 { &s[..s.len() - 1] } else { s };
    parse_number(digits)?.checked_mul(1 << shift)
}

/// Why memory was not reclaimed, or not as much as was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReclaimError {
    /// The request makes no sense.
    Invalid,
    /// Somebody else reclaims everybody's memory.
    Busy,
    /// A signal is pending; so many pages were reclaimed.
    Interrupted(u64),
    /// Nothing more was found; so many pages were reclaimed.
    Exhausted(u64),
}

impl ReclaimError {
    /// The kernel's name of the error.
    pub const fn errno(self) -> &'static str {
        match self {
            ReclaimError::Invalid => "EINVAL",
            ReclaimError::Busy => "EBUSY",
            ReclaimError::Interrupted(_) => "EINTR",
            ReclaimError::Exhausted(_) => "EAGAIN",
        }
    }
}

impl fmt::Display for ReclaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReclaimError::Invalid => f.write_str("not a number of bytes, or an unknown key"),
            ReclaimError::Busy => f.write_str("everybody's memory is being reclaimed"),
            ReclaimError::Interrupted(n) => write!(f, "a signal is pending, {n} pages reclaimed"),
            ReclaimError::Exhausted(n) => write!(f, "nothing more to reclaim than {n} pages"),
        }
    }
}
impl core::error::Error for ReclaimError {}

/// Reclaims memory because somebody asks for it; how many pages it were (rules PROACT-02,
/// PROACT-03). That may be more than was asked for.
///
/// Everybody's memory is reclaimed by one caller at a time; any number of callers
/// reclaim that of groups. The caller holds no locks.
///
/// # Errors
///
/// If everybody's memory is being reclaimed already, a signal is pending, or
/// attempts one after the other bring nothing. What was reclaimed stays so.
pub fn reclaim<P: ReclaimPlatform>(
    policy: UnmapPolicy,
    platform: &P,
    of: ReclaimOf<'_>,
    request: ReclaimRequest,
) -> Result<u64, ReclaimError> {
    let _whole = match of {
        ReclaimOf::Everybody => Some(platform.lru().whole().ok_or(ReclaimError::Busy)?),
        ReclaimOf::Group(_) => None,
    };
    let wanted = request.bytes >> P::Arch::PAGE_SHIFT;
    let balance = Balance { policy, of, swappiness: request.swappiness };
    let (mut reclaimed, mut retries) = (0, RETRIES);
    while reclaimed < wanted {
        if platform.interrupt().is_signal_pending() {
            return Err(ReclaimError::Interrupted(reclaimed));
        }
        if retries == 0 {
            platform.drain_batches();
        }
        // Not all at once: others may have given memory back meanwhile.
        let got = shrink_lists(&balance, platform, (wanted - reclaimed).div_ceil(4));
        reclaimed += got;
        if got == 0 {
            if retries == 0 {
                return Err(ReclaimError::Exhausted(reclaimed));
            }
            retries -= 1;
        }
    }
    Ok(reclaimed)
}
