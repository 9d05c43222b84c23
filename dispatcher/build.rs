//! Turns the numbers of `shared/*.h` into Rust constants, so that
//! extension and dispatcher cannot disagree about them.
//!
//! Of the headers only lines `#define BATON_NAME <integer>` are understood, with or
//! without a comment after the integer; the header says so too. Lists that both
//! languages are made from are `shared/*.inc`, of which each line of the list must be
//! understood.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

fn integer(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The arguments of each `NAME(...)` of a list, of which each has a line.
fn list(text: &str, name: &str) -> Vec<Vec<String>> {
    let outside_comment = text.split_once("*/").map_or(text, |(_, list)| list);
    let lines = outside_comment.lines().filter(|line| !line.is_empty());
    let arguments = |line: &str| -> Vec<String> {
        let inside = line
            .strip_prefix(name)
            .and_then(|line| line.strip_prefix('('))
            .and_then(|line| line.strip_suffix(')'));
        let inside = inside.unwrap_or_else(|| panic!("{name}: not understood: {line}"));
        inside.split(", ").map(str::to_owned).collect()
    };
    lines.map(arguments).collect()
}

/// Numbers `CAUSE_*`, and the texts by them; of 0, which is none, an empty one.
fn causes(text: &str, out: &mut String) {
    let causes = list(text, "BATON_CAUSE");
    let mut texts = vec!["\"\"".to_owned()];
    writeln!(out, "pub const CAUSE_NONE: u32 = 0;").expect("a String grows");
    for (index, cause) in causes.iter().enumerate() {
        let [name, text] = cause.as_slice() else {
            panic!("a cause has a name and a text: {cause:?}");
        };
        let number = index + 1;
        writeln!(out, "pub const CAUSE_{name}: u32 = {number};").expect("a String grows");
        texts.push(text.clone());
    }
    strings("CAUSES", &texts, out);
}

fn pool_settings(text: &str, out: &mut String) {
    let settings = list(text, "BATON_POOL_SETTING");
    let names = settings.iter().map(|setting| format!("\"{}\"", setting[0]));
    strings("POOL_SETTINGS", &names.collect::<Vec<String>>(), out);
}

fn strings(name: &str, quoted: &[String], out: &mut String) {
    let count = quoted.len();
    let all = quoted.join(", ");
    writeln!(out, "pub const {name}: [&str; {count}] = [{all}];").expect("a String grows");
}

fn main() {
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let folder = manifest.join("../shared");
    println!("cargo:rerun-if-changed={}", folder.display());
    println!("cargo:rerun-if-changed=build.rs");
    let text: String = ["shared", "control_memory", "arena_memory", "messages"]
        .map(|part| folder.join(format!("baton_{part}.h")))
        .map(|header| fs::read_to_string(header).expect("shared/ has the headers"))
        .concat();

    let mut out = String::new();
    let mut found = 0;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next() != Some("#define") {
            continue;
        }
        let (Some(name), Some(value)) = (words.next(), words.next()) else {
            continue;
        };
        let (true, Some(value)) = (name.starts_with("BATON_"), integer(value)) else {
            continue;
        };
        let kind = if u32::try_from(value).is_ok() {
            "u32"
        } else {
            "u64"
        };
        writeln!(out, "pub const {}: {kind} = {value:#x};", &name[6..]).expect("a String grows");
        found += 1;
    }
    assert!(
        found > 50,
        "the headers of shared/ are not what build.rs expects"
    );
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("shared/ has the lists");
    causes(&read("causes.inc"), &mut out);
    pool_settings(&read("pool_settings.inc"), &mut out);
    let target = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it")).join("shared.rs");
    fs::write(target, out).expect("OUT_DIR is writable");
}
