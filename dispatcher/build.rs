//! Turns the numbers of `shared/*.h` into Rust constants, so that
//! extension and dispatcher cannot disagree about them.
//!
//! Only lines `#define BATON_NAME <integer>` are understood, with or without
//! a comment after the integer; the header says so too.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

fn integer(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
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
    let target = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it")).join("shared.rs");
    fs::write(target, out).expect("OUT_DIR is writable");
}
