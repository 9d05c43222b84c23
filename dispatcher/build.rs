//! Makes Rust of `shared/`, so that extension and dispatcher cannot disagree about it.
//!
//! Of the headers it understands, comments apart:
//!
//! - `#define BATON_NAME <integer>`, or an expression of such names in parentheses;
//! - `typedef struct BatonName { ... } BatonName;` with fields of fixed width, arrays of
//!   them, and other such structures. What lies in CONTROL becomes atomics, since other
//!   processes write it at any time. There is no padding, so that every compiler lays it
//!   out alike, and a slot fills whole cache lines; else Rust does not compile.
//! - `#define BATON_NAME_FIELDS(field)` and lines of `field(type, name)`: a payload.
//!
//! Lists that both languages are made from are `shared/*.inc`, of which each line of the
//! list must be understood.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The header's structures are atomics: several processes write them.
const WRITTEN_BY_ALL: &str = "control_memory";

fn integer(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The code of a header.
pub fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |code, part| {
        let (_, after) = part.split_once("*/").expect("a comment ends");
        code + after
    })
}

/// One constant.
pub fn constant(name: &str, value: &str, out: &mut String) {
    let kind = match integer(value) {
        Some(value) if u32::try_from(value).is_err() => "u64",
        _ => "u32",
    };
    let value = value.trim_matches(['(', ')']).replace("BATON_", "");
    writeln!(out, "pub const {name}: {kind} = {value};").expect("a String grows");
}

/// All constants of a header.
pub fn constants(code: &str, out: &mut String) {
    for line in code.lines() {
        let Some(define) = line.strip_prefix("#define BATON_") else {
            continue;
        };
        // Others are C's own: guards, and what has arguments.
        match define.trim_end().split_once(' ') {
            Some((name, value)) if integer(value).is_some() || value.starts_with('(') => {
                constant(name, value, out);
            }
            _ => {}
        }
    }
}

/// A field's name and type.
fn field(declaration: &str, are_atomic: bool) -> (&str, String) {
    let (kind, name) = declaration
        .split_once(char::is_whitespace)
        .expect("a type and a name");
    let kind = match kind {
        "double" => "u64".to_owned(), // its bits
        _ => match kind.strip_suffix("_t") {
            Some(integer) => integer.replace("uint", "u").replace("int", "i"),
            None => kind.replace("Baton", ""),
        },
    };
    let kind = match are_atomic && kind.starts_with(char::is_lowercase) {
        true => format!("Atomic{}", kind.to_uppercase()),
        false => kind,
    };
    match name.trim().split_once('[') {
        None => (name.trim(), kind),
        Some((name, count)) => {
            let count = count.trim_end_matches(']').replace("BATON_", "");
            (name, format!("[{kind}; {count} as usize]"))
        }
    }
}

fn structures(code: &str, are_atomic: bool, out: &mut String) {
    for part in code.split("typedef struct Baton").skip(1) {
        let (name, body) = part.split_once('{').expect("a structure has a body");
        let (body, _) = body.split_once('}').expect("a structure ends");
        let declarations = body.split(';').map(str::trim);
        let fields: Vec<(&str, String)> = declarations
            .filter(|declaration| !declaration.is_empty())
            .map(|declaration| field(declaration, are_atomic))
            .collect();
        let (name, mut inside, mut sum) = (name.trim(), String::new(), String::new());
        for (field, kind) in fields {
            inside += &format!("pub {field}: {kind}, ");
            sum += &format!(" + size_of::<{kind}>()");
        }
        let derived = match are_atomic {
            true => "",
            false => "#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)] ",
        };
        let whole_lines = match name.ends_with("Slot") {
            true => format!(" && size_of::<{name}>() % 64 == 0"),
            false => String::new(),
        };
        *out += &format!("{derived}#[repr(C)] pub struct {name} {{ {inside}}}\n");
        *out += &format!("const _: () = assert!(size_of::<{name}>() == 0{sum}{whole_lines});\n");
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

fn error_classes(text: &str, out: &mut String) {
    let classes = list(text, "BATON_ERROR_CLASS");
    let texts = classes.into_iter().map(|mut class| class.remove(0));
    strings("ERROR_CLASSES", &texts.collect::<Vec<String>>(), out);
}

fn strings(name: &str, quoted: &[String], out: &mut String) {
    let count = quoted.len();
    let all = quoted.join(", ");
    writeln!(out, "pub const {name}: [&str; {count}] = [{all}];").expect("a String grows");
}

/// `LOGIN_ANSWER`: `LoginAnswer`.
fn camel_case(name: &str) -> String {
    let words = name.split('_');
    words
        .map(|word| word[..1].to_owned() + &word[1..].to_lowercase())
        .collect()
}

/// A structure of each list of fields that payloads have, which is read and written by
/// what wire.rs has for the fields' types.
fn payloads(code: &str, out: &mut String) {
    for part in code.split("#define BATON_").skip(1) {
        let Some((name, list)) = part.split_once("_FIELDS(field)") else {
            continue;
        };
        let (mut inside, mut read, mut write) = (String::new(), String::new(), String::new());
        for (index, line) in list.lines().enumerate() {
            let line = line.trim();
            let line = line.strip_suffix('\\').unwrap_or(line).trim();
            if index > 0 && line.is_empty() {
                break;
            }
            let Some(field) = line.strip_prefix("field(") else {
                assert!(index == 0, "{name}: not understood: {line}");
                continue;
            };
            let (kind, field) = (field.trim_end_matches(')').split_once(", ")).expect("two words");
            let rust = match kind {
                "string" | "bytes" => "&'a [u8]",
                "address" => "[u8; 16]",
                fixed => fixed,
            };
            inside += &format!("pub {field}: {rust}, ");
            read += &format!("{field}: from.{kind}()?, ");
            write += &format!(".{kind}(self.{field})");
        }
        let name = camel_case(name);
        let (of, with) = match inside.contains("&'a") {
            true => ("<'a>", "<'a>"),
            false => ("", "<'_>"),
        };
        *out += &format!(
            "#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)] pub struct {name}{of} {{ {inside}}}\n\
             impl{of} {name}{of} {{\n\
             pub fn read(from: &mut Reader{with}) -> Result<Self, Malformed> {{ Ok(Self {{ {read}}}) }}\n\
             pub fn write(&self, to: Writer) -> Writer {{ to{write} }}\n}}\n"
        );
    }
}

/// What `shared/layout-version` prints.
pub fn layout_version(folder: &Path) -> String {
    let output = Command::new(folder.join("layout-version")).output();
    let output = output.expect("shared/layout-version can be run");
    assert!(output.status.success(), "shared/layout-version: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn main() {
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let folder = manifest.join("../shared");
    println!("cargo:rerun-if-changed={}", folder.display());
    println!("cargo:rerun-if-changed=build.rs");
    // The extension tells builds apart by it (program.c).
    println!("cargo:rustc-link-arg-bins=-Wl,--build-id=sha1");
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("shared/ has it");

    let mut out = String::from(
        "use crate::shell::link::wire::{Malformed, Reader, Writer};\nuse std::sync::atomic::*;\n",
    );
    constant("LAYOUT_VERSION", &layout_version(&folder), &mut out);
    for part in ["shared", "control_memory", "arena_memory", "messages"] {
        let code = without_comments(&read(&format!("baton_{part}.h")));
        constants(&code, &mut out);
        structures(&code, part == WRITTEN_BY_ALL, &mut out);
        payloads(&code, &mut out);
    }
    causes(&read("causes.inc"), &mut out);
    error_classes(&read("error_classes.inc"), &mut out);
    pool_settings(&read("pool_settings.inc"), &mut out);
    let target = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it")).join("shared.rs");
    fs::write(target, out).expect("OUT_DIR is writable");
}
