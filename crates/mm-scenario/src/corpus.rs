//! Scenarios on disk, with their goldens and their row in the manifest.
//!
//! A folder of scenarios looks like this; all but the `.scn` files may be missing:
//!
//! ```text
//! DIR/NAME.scn                  the scenario
//! DIR/golden/NAME.json          what mainline 6.18 prints
//! DIR/golden/NAME.seed003.json  with the values of whole-folio reuse, where they differ
//! DIR/golden/NAME.page.json     where given-up pages are dropped one by one, if that differs
//! DIR/manifest.tsv              a row on what each checks
//! ```

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The scenarios that come with the crate, in its source folder.
#[must_use]
pub const fn handed_dir() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/data")
}

/// A scenario and what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name of the file without `.scn`.
    pub name: String,
    /// The `.scn` file.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
    /// The golden file of mainline.
    pub golden: Option<String>,
    /// The derived golden file, if some observations differ by design.
    pub seed003: Option<String>,
    /// What it prints where pages that were given up are dropped one by one, if that
    /// differs.
    pub page: Option<String>,
    /// The row of the manifest.
    pub manifest: Option<ManifestRow>,
}

/// A row of `manifest.tsv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestRow {
    /// The scenario.
    pub name: String,
    /// `stable`, or `stable+stats-noise` where counters of other processes show in `stats`.
    pub stability: String,
    /// Lines that differ by design, or `-`.
    pub differs_by_design_lines: String,
    /// How the differing values were made: `model` or `pragma`.
    pub derived_by: String,
    /// What the scenario checks.
    pub about: String,
}

/// A file that is there but cannot be used.
#[derive(Debug, Error)]
pub enum CorpusError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not text.
    #[error("{}:{line}: not UTF-8", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first line that is not UTF-8, from 1.
        line: usize,
    },
    /// A row of the manifest has too few columns.
    #[error("{}:{line}: a manifest row has 5 columns", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
    },
}

impl Entry {
    /// Loads one scenario and what lies beside it.
    ///
    /// # Errors
    /// A file is there but cannot be read, or the scenario is missing.
    pub fn load(path: &Path) -> Result<Self, CorpusError> {
        let dir = path.parent().unwrap_or(Path::new(""));
        let manifest = read_manifest(dir)?;
        Self::load_with(path, &manifest)
    }

    fn load_with(path: &Path, manifest: &[ManifestRow]) -> Result<Self, CorpusError> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let golden = path.parent().unwrap_or(Path::new("")).join("golden");
        let text = read(path)?;
        Ok(Self {
            text,
            path: path.to_owned(),
            golden: read_if_there(&golden.join(format!("{name}.json")))?,
            seed003: read_if_there(&golden.join(format!("{name}.seed003.json")))?,
            page: read_if_there(&golden.join(format!("{name}.page.json")))?,
            manifest: manifest.iter().find(|row| row.name == name).cloned(),
            name,
        })
    }

    /// Whether the manifest marks the scenario as covered by the model of anonymous memory.
    #[must_use]
    pub fn is_model(&self) -> bool {
        self.manifest.as_ref().is_some_and(|row| row.derived_by == "model")
    }

    /// Whether counters of other processes show in the golden `stats`.
    #[must_use]
    pub fn has_stats_noise(&self) -> bool {
        self.manifest.as_ref().is_some_and(|row| row.stability.contains("stats-noise"))
    }
}

/// The scenarios that come with the crate, by name.
///
/// # Errors
/// The crate's source folder is not there.
pub fn handed() -> Result<Vec<Entry>, CorpusError> {
    load_dir(Path::new(handed_dir()))
}

/// The scenarios of a folder, by name.
///
/// # Errors
/// The folder, or a file in it, cannot be read.
pub fn load_dir(dir: &Path) -> Result<Vec<Entry>, CorpusError> {
    let io = |source| CorpusError::Io { path: dir.to_owned(), source };
    let mut paths = Vec::new();
    for file in fs::read_dir(dir).map_err(io)? {
        let path = file.map_err(io)?.path();
        if path.extension().is_some_and(|extension| extension == "scn") {
            paths.push(path);
        }
    }
    paths.sort();
    let manifest = read_manifest(dir)?;
    paths.iter().map(|path| Entry::load_with(path, &manifest)).collect()
}

fn read(path: &Path) -> Result<String, CorpusError> {
    let bytes =
        fs::read(path).map_err(|source| CorpusError::Io { path: path.to_owned(), source })?;
    String::from_utf8(bytes).map_err(|error| {
        let text = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + text.iter().filter(|byte| **byte == b'\n').count();
        CorpusError::NotText { path: path.to_owned(), line }
    })
}

fn read_if_there(path: &Path) -> Result<Option<String>, CorpusError> {
    match read(path) {
        Ok(text) => Ok(Some(text)),
        Err(CorpusError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_manifest(dir: &Path) -> Result<Vec<ManifestRow>, CorpusError> {
    let path = dir.join("manifest.tsv");
    let text = read_if_there(&path)?.unwrap_or_default();
    let mut rows = Vec::new();
    for (line, row) in (1..).zip(text.lines()).skip(1) {
        let mut columns = row.splitn(5, '\t').map(str::to_owned);
        let mut column =
            || columns.next().ok_or_else(|| CorpusError::Manifest { path: path.clone(), line });
        rows.push(ManifestRow {
            name: column()?,
            stability: column()?,
            differs_by_design_lines: column()?,
            derived_by: column()?,
            about: column()?,
        });
    }
    Ok(rows)
}
