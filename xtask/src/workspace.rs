//! What cargo knows about this workspace.

use std::path::PathBuf;

use serde_json::Value;

use crate::cmd::{self, Error};

/// The workspace that xtask is run in.
pub struct Workspace {
    /// Repository root.
    pub root: PathBuf,
    /// Where cargo puts what it builds.
    pub target: PathBuf,
    /// Members, by name.
    pub packages: Vec<Package>,
}

/// One workspace member.
#[derive(Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub dir: PathBuf,
    /// Whether it has a library target.
    pub has_lib: bool,
    /// Its examples with the features that they ask for.
    pub examples: Vec<(String, Vec<String>)>,
    /// Its integration tests.
    pub tests: Vec<String>,
}

impl Workspace {
    /// Asks `cargo metadata`; needs no network.
    pub fn load() -> Result<Self, Error> {
        // As cargo says now, not as it said then: with a target directory that
        // several checkouts share, another one may have built this program.
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root =
            manifest.parent().ok_or_else(|| Error::Input("xtask lies in no workspace".into()))?;
        let mut c = cmd::cargo(&["metadata", "--no-deps", "--format-version", "1"]);
        let out = cmd::output(c.current_dir(root))?;
        let v: Value = serde_json::from_slice(&out.stdout)
            .map_err(|e| Error::Input(format!("cargo metadata: {e}")))?;
        Self::parse(&v).ok_or_else(|| Error::Input("cargo metadata: unknown shape".into()))
    }

    fn parse(v: &Value) -> Option<Self> {
        let mut packages =
            v["packages"].as_array()?.iter().map(Package::parse).collect::<Option<Vec<_>>>()?;
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        Some(Workspace {
            root: v["workspace_root"].as_str()?.into(),
            target: v["target_directory"].as_str()?.into(),
            packages,
        })
    }

    /// The library crates, which must build alone.
    pub fn libraries(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|p| p.has_lib)
    }

    /// `cargo` in the root of the workspace.
    pub fn cargo(&self, args: &[&str]) -> std::process::Command {
        let mut c = cmd::cargo(args);
        c.current_dir(&self.root);
        c
    }
}

impl Package {
    /// Whether its library says that it does without std.
    pub fn is_no_std(&self) -> bool {
        std::fs::read_to_string(self.dir.join("src/lib.rs"))
            .is_ok_and(|text| text.lines().any(|line| line.trim() == "#![no_std]"))
    }
    fn parse(v: &Value) -> Option<Self> {
        let manifest = PathBuf::from(v["manifest_path"].as_str()?);
        let mut p = Package {
            name: v["name"].as_str()?.into(),
            dir: manifest.parent()?.into(),
            has_lib: false,
            examples: Vec::new(),
            tests: Vec::new(),
        };
        for t in v["targets"].as_array()? {
            let name = t["name"].as_str()?.to_owned();
            for kind in t["kind"].as_array()? {
                match kind.as_str()? {
                    "lib" | "rlib" => p.has_lib = true,
                    "test" => p.tests.push(name.clone()),
                    "example" => p.examples.push((name.clone(), strings(&t["required-features"]))),
                    _ => {}
                }
            }
        }
        Some(p)
    }

    /// The integration tests that hold loom models.
    pub fn loom_tests(&self) -> impl Iterator<Item = &str> {
        self.tests.iter().map(String::as_str).filter(|t| t.starts_with("loom_"))
    }
}

fn strings(v: &Value) -> Vec<String> {
    v.as_array().into_iter().flatten().filter_map(|s| s.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn metadata_is_read() {
        let v = serde_json::json!({
            "workspace_root": "/r", "target_directory": "/t",
            "packages": [
                {"name": "b", "manifest_path": "/r/b/Cargo.toml", "targets": [
                    {"name": "b", "kind": ["bin"]}]},
                {"name": "a", "manifest_path": "/r/a/Cargo.toml", "targets": [
                    {"name": "a", "kind": ["lib"]},
                    {"name": "tour", "kind": ["example"], "required-features": ["std"]},
                    {"name": "loom_fast", "kind": ["test"]},
                    {"name": "props", "kind": ["test"]}]},
            ]
        });
        let ws = Workspace::parse(&v).expect("parses");
        assert_eq!(ws.packages[0].name, "a");
        assert_eq!(ws.packages[0].dir, Path::new("/r/a"));
        assert_eq!(ws.packages[0].examples, [("tour".to_owned(), vec!["std".to_owned()])]);
        assert_eq!(ws.packages[0].loom_tests().collect::<Vec<_>>(), ["loom_fast"]);
        assert_eq!(ws.libraries().count(), 1);
    }

    #[test]
    fn this_workspace_is_found() {
        let ws = Workspace::load().expect("loads");
        assert!(ws.packages.iter().any(|p| p.name == "xtask"));
        assert!(ws.root.join("rust-toolchain.toml").is_file());
        let no_std = |name: &str| ws.libraries().any(|p| p.name == name && p.is_no_std());
        assert!(no_std("mm-sync") && no_std("mm-map") && !no_std("mm-sim"));
    }
}
