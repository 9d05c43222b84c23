//! A relay between a real TLS client and a far end, all in memory. The input is
//! a script: who writes and reads how much, who ends, what of the wire is lost
//! or changed. Whatever happens, bytes arrive in order and unchanged or not at
//! all, and what the relay holds is bounded.

use crate::pieces::choice;
use crate::shell::sys::openssl_memory;
use crate::shell::tls::context::{self, Occasion, ServerContext, Settings};
use crate::shell::tls::relay::{Buffers, Relay, Secure, Turn};
use openssl::ssl::{Ssl, SslContext, SslMethod, SslStream, SslVerifyMode, SslVersion};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::OnceLock;
use world::{self_signed, ClientWire, Pipe, World};

#[path = "../../dispatcher/src/shell/tls/relay_world.rs"]
mod world;

/// What may be held of a relay: a buffer a direction, and what TLS adds.
const MOST_HELD: usize = 3 * 32 * 1024 + 64 * 1024;

/// As the program loads it, from files.
fn server() -> &'static ServerContext {
    static SERVER: OnceLock<ServerContext> = OnceLock::new();
    SERVER.get_or_init(|| {
        // As the program does, before anything else of OpenSSL.
        openssl_memory::take_over();
        assert!(openssl_memory::is_taken_over());
        let folder = std::env::temp_dir().join(format!("baton-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (certificate, key) = self_signed();
        let (cert_file, key_file) = (folder.join("server.crt"), folder.join("server.key"));
        std::fs::write(&cert_file, certificate.to_pem().unwrap()).expect("a file");
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&key_file)
            .and_then(|mut file| file.write_all(&key.private_key_to_pem_pkcs8().unwrap()))
            .expect("a file");
        let mut settings = Settings {
            cert_file: cert_file.to_string_lossy().into_owned(),
            key_file: key_file.to_string_lossy().into_owned(),
            ..Settings::default()
        };
        for (name, value) in [
            ("ssl", "on"),
            ("ssl_ciphers", "HIGH:MEDIUM:+3DES:!aNULL"),
            ("ssl_groups", "X25519:prime256v1"),
            ("ssl_min_protocol_version", "TLSv1.2"),
        ] {
            assert!(settings.set(name, value));
        }
        let loaded = context::load(&settings, 18, Occasion::Start, &None);
        let _ = std::fs::remove_dir_all(&folder);
        loaded.unwrap_or_else(|why| panic!("{why}"))
    })
}

fn client(version: SslVersion) -> SslStream<ClientWire> {
    static CONTEXT: OnceLock<SslContext> = OnceLock::new();
    let context = CONTEXT.get_or_init(|| {
        let mut builder = SslContext::builder(SslMethod::tls_client()).unwrap();
        builder.set_verify(SslVerifyMode::NONE);
        builder.build()
    });
    let mut ssl = Ssl::new(context).unwrap();
    ssl.set_max_proto_version(Some(version)).unwrap();
    ssl.set_alpn_protos(b"\x0apostgresql").unwrap();
    SslStream::new(ssl, ClientWire::default()).unwrap()
}

/// The n-th byte that one side sends.
fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(31) + at / 251) as u8
}

struct Scene {
    relay: Relay,
    world: World,
    buffers: Buffers,
    client: SslStream<ClientWire>,
    is_over: bool,
    /// Something of the wire was changed: it is the end, when it is noticed.
    is_broken: bool,
    sent_up: usize,
    got_up: usize,
    sent_down: usize,
    got_down: usize,
}

impl Scene {
    fn new(choice: u8) -> Scene {
        let version = if choice & 2 == 0 {
            SslVersion::TLS1_3
        } else {
            SslVersion::TLS1_2
        };
        let room = [300, 4_000, 17_000, 300_000][usize::from(choice >> 2 & 3)];
        let mut world = World::default();
        for pipe in [
            &mut world.from_client,
            &mut world.to_client,
            &mut world.from_backend,
            &mut world.to_backend,
        ] {
            pipe.room = room;
        }
        let server = server();
        let secure = Secure::new(|| server.session()).unwrap_or_else(|why| panic!("{why}"));
        Scene {
            relay: Relay::new(secure, 50_000),
            world,
            buffers: Buffers::new(),
            client: client(version),
            is_over: false,
            is_broken: false,
            sent_up: 0,
            got_up: 0,
            sent_down: 0,
            got_down: 0,
        }
    }

    fn note(&mut self, turn: &Turn) {
        self.is_over |= matches!(turn, Turn::Over(_));
        assert!(self.relay.held() <= MOST_HELD, "{}", self.relay.held());
    }

    /// A turn of each side, if the relay wants one.
    fn turn(&mut self) {
        if self.is_over {
            return;
        }
        let wants = self.relay.wants();
        if wants.client_in || wants.client_out || wants.backend_out {
            let turn = self.relay.client_turn(&mut self.world, &mut self.buffers);
            self.note(&turn);
        }
        let wants = self.relay.wants();
        if !self.is_over && (wants.backend_in || wants.client_out) {
            let turn = self.relay.backend_turn(&mut self.world, &mut self.buffers);
            self.note(&turn);
        }
    }

    /// What the client has written goes on its way, as far as there is room.
    fn carry(&mut self) {
        let output = &mut self.client.get_mut().output;
        if let Ok(length) = self.world.from_client.write(output) {
            output.drain(..length);
        }
    }

    fn client_reads(&mut self) {
        let came = std::mem::take(&mut self.world.to_client.bytes);
        self.client.get_mut().input.extend(came);
        let mut buffer = [0; 4096];
        while let Ok(length) = self.client.ssl_read(&mut buffer) {
            if length == 0 {
                break;
            }
            for byte in &buffer[..length] {
                assert_eq!(*byte, pattern(self.got_down));
                self.got_down += 1;
            }
        }
        assert!(self.got_down <= self.sent_down);
    }

    fn backend_reads(&mut self, most: usize) {
        let length = most.min(self.world.to_backend.bytes.len());
        for byte in self.world.to_backend.bytes.drain(..length) {
            assert_eq!(byte, pattern(self.got_up));
            self.got_up += 1;
        }
        assert!(self.got_up <= self.sent_up);
    }

    /// False if there is none, which only a broken wire excuses.
    fn shake_hands(&mut self) -> bool {
        for _ in 0..2_000 {
            match self.client.connect() {
                Ok(()) if !self.relay.is_in_handshake() => return true,
                _ => {}
            }
            self.carry();
            self.turn();
            let came = std::mem::take(&mut self.world.to_client.bytes);
            self.client.get_mut().input.extend(came);
        }
        assert!(self.is_over);
        false
    }

    fn step(&mut self, what: u8, how_much: usize) {
        match what % 12 {
            0 => self.turn(),
            1 => {
                let bytes: Vec<u8> = (self.sent_up..self.sent_up + how_much)
                    .map(pattern)
                    .collect();
                if !self.world.from_client.is_ended && !bytes.is_empty() {
                    if let Ok(length) = self.client.ssl_write(&bytes) {
                        self.sent_up += length;
                    }
                }
            }
            2 => self.carry(),
            3 => self.client_reads(),
            4 => {
                let bytes: Vec<u8> = (self.sent_down..self.sent_down + how_much)
                    .map(pattern)
                    .collect();
                if !self.world.from_backend.is_ended {
                    self.sent_down += self.world.from_backend.write(&bytes).unwrap_or(0);
                }
            }
            5 => self.backend_reads(how_much),
            6 => self.world.from_backend.is_ended = true,
            7 => self.world.from_client.is_ended = true,
            8 => {
                let _ = self.client.shutdown();
            }
            9 => {
                if let Some(byte) = self.world.from_client.bytes.get_mut(how_much) {
                    *byte ^= 0x40;
                    self.is_broken = true;
                }
            }
            10 => {
                if !self.world.from_client.is_ended && how_much > 0 {
                    self.world
                        .from_client
                        .bytes
                        .extend(vec![what; how_much.min(500)]);
                    self.is_broken = true;
                }
            }
            _ => {
                for _ in 0..4 {
                    self.carry();
                    self.turn();
                    self.client_reads();
                    self.backend_reads(usize::MAX);
                }
            }
        }
    }

    /// If nobody has ended and nothing was broken, all that was sent arrives.
    fn settle(&mut self) {
        let mut idle = 0;
        while idle < 10 && !self.is_over {
            let before = (
                self.got_up,
                self.got_down,
                self.client.get_ref().output.len(),
            );
            self.carry();
            self.turn();
            self.client_reads();
            self.backend_reads(usize::MAX);
            let after = (
                self.got_up,
                self.got_down,
                self.client.get_ref().output.len(),
            );
            idle = if after == before { idle + 1 } else { 0 };
        }
        if !self.is_broken && !self.world.from_client.is_ended && !self.world.from_backend.is_ended
        {
            assert!(!self.is_over, "over for no reason");
            assert_eq!((self.got_up, self.got_down), (self.sent_up, self.sent_down));
        }
    }
}

pub fn run(data: &[u8]) {
    let (choice, script) = choice(data);
    let mut scene = Scene::new(choice);
    if choice & 1 != 0 {
        // A stranger's bytes as they are; `choice` says whether by request.
        let (first, rest) = script.split_at(script.len().min(8));
        if choice & 16 != 0 && !first.is_empty() {
            let turn = scene
                .relay
                .begin_with(first, &mut scene.world, &mut scene.buffers);
            scene.note(&turn);
        }
        for part in rest.chunks(1 + usize::from(choice >> 4) * 40) {
            let mut at = 0;
            for _ in 0..100 {
                at += scene.world.from_client.write(&part[at..]).unwrap_or(0);
                scene.turn();
                scene.world.to_client.bytes.clear();
                if at == part.len() || scene.is_over {
                    break;
                }
            }
        }
        assert!(scene.relay.is_in_handshake() || scene.is_over);
        assert!(scene.world.to_backend.bytes.is_empty());
        return;
    }
    if !scene.shake_hands() {
        return;
    }
    for step in script.chunks(2).take(300) {
        let how_much = usize::from(step.get(1).copied().unwrap_or(0));
        // Small amounts, and some of several records.
        let how_much = if step[0] & 0x80 != 0 {
            how_much * 150
        } else {
            how_much
        };
        scene.step(step[0] & 0x7f, how_much);
        if scene.is_over {
            return;
        }
    }
    scene.settle();
}
