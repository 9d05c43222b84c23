//! Takes the constants of the messages from `shared/`, as the dispatcher does, and the layout
//! version, by which the launcher tells whether the program fits the library.

#[allow(dead_code)]
#[path = "../dispatcher/build.rs"]
mod dispatcher;

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let folder = manifest.join("../shared");
    println!("cargo:rerun-if-changed={}", folder.display());
    println!("cargo:rerun-if-changed=../dispatcher/build.rs");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-Wl,--build-id=sha1");
    let header = fs::read_to_string(folder.join("baton_messages.h")).expect("shared/ has it");
    let code = dispatcher::without_comments(&header);
    let mut out = String::new();
    let version = dispatcher::layout_version(&folder);
    dispatcher::constant("LAYOUT_VERSION", &version, &mut out);
    dispatcher::constants(&code, &mut out);
    let target = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it")).join("shared.rs");
    fs::write(target, out).expect("OUT_DIR is writable");
}
