//! Where an operation acts: processes, regions, windows and page ranges.
//!
//! Names are resolved while a scenario is parsed. What is left in an operation is a small
//! index; [`Scenario`](crate::Scenario) keeps the names.

/// Bytes in a page of the language, unless a scenario says otherwise.
pub const PAGE_SIZE: u64 = 4096;

/// Most pages that a window of a region has (1 GiB).
pub const WINDOW_PAGES: u64 = (1 << 30) / PAGE_SIZE;

/// Most regions a scenario can have: all windows lie below the top of a 47-bit address space.
pub const MAX_REGIONS: usize = 65536;

/// Largest file or swap device, in pages (64 GiB).
pub const MAX_PAGES: u64 = (64 << 30) / PAGE_SIZE;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// Position in the order of first mention, from 0.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A process. A name that is used again after `exit` is a new process.
    ProcId;
    /// A named address window, the same in every process.
    RegionId;
    /// A file made by `file`.
    FileId;
    /// The name of a pin. Each process has its own pin of that name.
    PinId;
}

impl ProcId {
    /// The process that exists at the start, `p0`.
    pub const FIRST: Self = Self(0);
}

/// A region: a name for pages at a fixed place in its own window. Where the windows are is a
/// question of the machine's format, see [`Windows`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// The name in the scenario.
    pub name: String,
    /// Number of the window (`k`): the order in which `mmap` and `mremap ... move` first mention
    /// the names.
    pub window: u32,
    /// Pages between the start of the window and page 0 of the region (`at=`).
    pub at: u64,
    /// Pages from page 0 on to the last one that any line names.
    pub reach: u64,
}

impl Region {
    /// Pages from page 0 of the region to the end of the largest window.
    #[must_use]
    pub fn max_pages(&self) -> u64 {
        WINDOW_PAGES - self.at
    }
}

/// Where the windows of regions lie in an address space: side by side from a base on. So no two
/// regions share a VMA, nor a page table of a window's size.
///
/// ```
/// use mm_scenario::{Scenario, Windows};
///
/// let scenario = Scenario::parse("small", "mmap p0 a 4 anon rw private at=1\n")?;
/// let (_, region) = scenario.regions().next().unwrap();
/// assert_eq!(Windows::WIDE.address(region, 2), 0x1000_0000_3000);
/// assert_eq!(Windows::NARROW.address(region, 2), 0x1000_3000);
/// assert_eq!(Windows::NARROW.locate(0x1000_3000), Some((0, 3)));
/// # Ok::<(), mm_scenario::ParseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    base: u64,
    bytes: u64,
    page_size: u64,
}

impl Windows {
    /// Those of the language: 1 GiB each, from 16 TiB on.
    pub const WIDE: Self = Self { base: 0x1000_0000_0000, bytes: 1 << 30, page_size: PAGE_SIZE };
    /// Those of formats with less address space: 64 MiB each, from 256 MiB on.
    pub const NARROW: Self = Self { base: 0x1000_0000, bytes: 64 << 20, page_size: PAGE_SIZE };

    /// The windows of a machine whose user addresses end at `user_end`.
    #[must_use]
    pub const fn below(user_end: u64) -> Self {
        let wide_end = Self::WIDE.base + MAX_REGIONS as u64 * Self::WIDE.bytes;
        if user_end >= wide_end { Self::WIDE } else { Self::NARROW }
    }

    /// The same places with pages of `page_size` bytes.
    #[must_use]
    pub const fn with_page_size(self, page_size: u64) -> Self {
        Self { page_size, ..self }
    }

    /// Bytes of a page.
    #[must_use]
    pub const fn page_size(self) -> u64 {
        self.page_size
    }

    /// Bytes of a window.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Address of the first byte of the region's window.
    #[must_use]
    pub fn start(self, region: &Region) -> u64 {
        self.base + u64::from(region.window) * self.bytes
    }

    /// Address of page `page` of the region, in bytes. Page 0 is at `at` in the window.
    #[must_use]
    pub fn address(self, region: &Region, page: u64) -> u64 {
        self.start(region) + (region.at + page) * self.page_size
    }

    /// Number of the window that `address` is in, and the page of that window; `None` below the
    /// first.
    #[must_use]
    pub fn locate(self, address: u64) -> Option<(u64, u64)> {
        let offset = address.checked_sub(self.base)?;
        Some((offset / self.bytes, offset % self.bytes / self.page_size))
    }

    /// Whether every page that the scenario names of the region lies in its window, and that
    /// below `user_end`.
    #[must_use]
    pub fn hold(self, region: &Region, user_end: u64) -> bool {
        (region.at + region.reach) * self.page_size <= self.bytes
            && self.start(region) + self.bytes <= user_end
    }
}

/// Pages of a region, resolved: a range that gives only the name has the extent of the region
/// at that line.
///
/// # Invariants
/// `pages` and `stride` are at least 1 and `first + pages` lies within the region's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The region.
    pub region: RegionId,
    /// First page, counted from the start of the region.
    pub first: u64,
    /// Pages that the range spans.
    pub pages: u64,
    /// Distance of the pages that are touched; 1 touches all.
    pub stride: u64,
}

impl Range {
    /// Page after the last one of the span.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first + self.pages
    }

    /// The pages that are touched, ascending; call `rev()` for the other way.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u64> + use<> {
        let Self { first, stride, .. } = *self;
        (0..self.pages.div_ceil(stride)).map(move |k| first + k * stride)
    }

    /// The pages in the order of an access.
    pub fn in_order(&self, order: TouchOrder) -> impl Iterator<Item = u64> + use<> {
        let Self { first, pages, stride, .. } = *self;
        let touches = pages.div_ceil(stride);
        (0..touches).map(move |k| {
            let k = if order == TouchOrder::Descending { touches - 1 - k } else { k };
            first + k * stride
        })
    }

    /// What `"after"` of a signal is when the `touch`-th touch (from 0, in the order of the
    /// access) was answered with it.
    #[must_use]
    pub fn after(&self, touch: u64) -> u64 {
        touch * self.stride
    }
}

/// The order in which an access touches the pages of its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TouchOrder {
    /// From the first page up.
    #[default]
    Ascending,
    /// From the last page down (`rev`).
    Descending,
}
