//! Both ends of a relay in memory, for its tests and its fuzzer (fuzz/src/tls.rs). Each of them
//! includes this file.

use crate::shell::tls::relay::Ends;
use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::{X509Builder, X509NameBuilder, X509};
use std::io::{self, Read, Write};

/// One direction of a connection: it holds at most `room` bytes.
#[derive(Default)]
pub struct Pipe {
    pub bytes: Vec<u8>,
    pub room: usize,
    pub is_ended: bool,
}

impl Pipe {
    pub fn new(room: usize) -> Pipe {
        Pipe {
            room,
            ..Pipe::default()
        }
    }

    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = into.len().min(self.bytes.len());
        if length == 0 && !self.is_ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        into[..length].copy_from_slice(&self.bytes[..length]);
        self.bytes.drain(..length);
        Ok(length)
    }

    /// `room` may have become less than what the pipe holds.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len().min(self.room.saturating_sub(self.bytes.len()));
        if length == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.bytes.extend_from_slice(&bytes[..length]);
        Ok(length)
    }
}

/// What the relay reads and writes.
#[derive(Default)]
pub struct World {
    pub from_client: Pipe,
    pub to_client: Pipe,
    pub from_backend: Pipe,
    pub to_backend: Pipe,
}

impl Ends for World {
    fn read_client(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.from_client.read(into)
    }
    fn write_client(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to_client.write(bytes)
    }
    fn read_backend(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.from_backend.read(into)
    }
    fn write_backend(&mut self, bytes: &[u8]) -> io::Result<usize> {
        assert!(!self.to_backend.is_ended, "bytes after the end");
        self.to_backend.write(bytes)
    }
    fn end_backend(&mut self) {
        self.to_backend.is_ended = true;
    }
}

/// The client's side of the wire.
#[derive(Default)]
pub struct ClientWire {
    pub input: Vec<u8>,
    pub output: Vec<u8>,
}

impl Read for ClientWire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = into.len().min(self.input.len());
        if length == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        into[..length].copy_from_slice(&self.input[..length]);
        self.input.drain(..length);
        Ok(length)
    }
}

impl Write for ClientWire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A certificate for localhost, valid for a day, and its key.
pub fn self_signed() -> (X509, PKey<Private>) {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut name = X509NameBuilder::new().unwrap();
    name.append_entry_by_text("CN", "localhost").unwrap();
    let name = name.build();
    let mut certificate = X509Builder::new().unwrap();
    let serial = BigNum::from_u32(1).unwrap().to_asn1_integer().unwrap();
    certificate.set_serial_number(&serial).unwrap();
    certificate.set_subject_name(&name).unwrap();
    certificate.set_issuer_name(&name).unwrap();
    certificate.set_pubkey(&key).unwrap();
    let (from, to) = (Asn1Time::days_from_now(0), Asn1Time::days_from_now(1));
    certificate.set_not_before(&from.unwrap()).unwrap();
    certificate.set_not_after(&to.unwrap()).unwrap();
    certificate.sign(&key, MessageDigest::sha256()).unwrap();
    (certificate.build(), key)
}
