//! A relay between a real TLS client and a far end, both of them in memory.

use super::*;
use openssl::ssl::{
    ErrorCode, Ssl, SslContext, SslMethod, SslMode, SslOptions, SslStream, SslVerifyMode,
    SslVersion,
};
use world::{self_signed, ClientWire, Pipe, World};

#[path = "relay_world.rs"]
mod world;

fn server_context() -> SslContext {
    let (certificate, key) = self_signed();
    let mut builder = SslContext::builder(SslMethod::tls_server()).unwrap();
    builder.set_certificate(&certificate).unwrap();
    builder.set_private_key(&key).unwrap();
    builder.set_mode(SslMode::ACCEPT_MOVING_WRITE_BUFFER | SslMode::RELEASE_BUFFERS);
    builder.set_options(SslOptions::NO_TICKET | SslOptions::NO_RENEGOTIATION);
    builder.set_num_tickets(0).unwrap();
    builder.build()
}

/// A relay, and a client at its other side.
struct Scene {
    relay: Relay,
    world: World,
    buffers: Buffers,
    client: SslStream<ClientWire>,
    over: Option<Turn>,
    most_held: usize,
}

impl Scene {
    fn new(room: usize, version: SslVersion) -> Scene {
        let mut client = SslContext::builder(SslMethod::tls_client()).unwrap();
        client.set_verify(SslVerifyMode::NONE);
        client.set_max_proto_version(Some(version)).unwrap();
        let client = Ssl::new(&client.build()).unwrap();
        let secure = Secure::new(|| Ssl::new(&server_context())).unwrap();
        Scene {
            relay: Relay::new(secure, 0),
            world: World {
                from_client: Pipe::new(room),
                to_client: Pipe::new(room),
                from_backend: Pipe::new(room),
                to_backend: Pipe::new(room),
            },
            buffers: Buffers::new(),
            client: SslStream::new(client, ClientWire::default()).unwrap(),
            over: None,
            most_held: 0,
        }
    }

    /// A scene after the handshake.
    fn open(room: usize, version: SslVersion) -> Scene {
        let mut scene = Scene::new(room, version);
        for _ in 0..100_000 {
            match scene.client.connect() {
                Ok(()) if !scene.relay.is_in_handshake() => return scene,
                Ok(()) => {}
                Err(error) => assert_eq!(error.code(), ErrorCode::WANT_READ),
            }
            scene.carry(true);
        }
        panic!("no handshake");
    }

    /// Carries bytes between client and relay as far as there is room, and gives the relay the
    /// turns that it wants and can have.
    fn carry(&mut self, client_reads: bool) {
        let wire = self.client.get_mut();
        let pipe = &mut self.world.from_client;
        let length = wire.output.len().min(pipe.room - pipe.bytes.len());
        pipe.bytes.extend(wire.output.drain(..length));
        if client_reads {
            wire.input.append(&mut self.world.to_client.bytes);
        }
        let wants = self.relay.wants();
        let world = &self.world;
        let readable = |pipe: &Pipe| !pipe.bytes.is_empty() || pipe.is_ended;
        let writable = |pipe: &Pipe| pipe.bytes.len() < pipe.room;
        let client = (wants.client_in && readable(&world.from_client))
            || (wants.backend_out && writable(&world.to_backend))
            || (wants.client_out && writable(&world.to_client));
        let backend = (wants.backend_in && readable(&world.from_backend))
            || (wants.client_out && writable(&world.to_client));
        if self.over.is_none() && client {
            let turn = self.relay.client_turn(&mut self.world, &mut self.buffers);
            self.note(turn);
        }
        if self.over.is_none() && backend {
            let turn = self.relay.backend_turn(&mut self.world, &mut self.buffers);
            self.note(turn);
        }
    }

    fn note(&mut self, turn: Turn) {
        self.most_held = self.most_held.max(self.relay.held());
        if let Turn::Over(_) = turn {
            self.over = Some(turn);
        }
    }

    /// What the client can read now.
    fn client_reads(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(length) = self.client.ssl_read(&mut buffer) {
            if length == 0 {
                break;
            }
            all.extend_from_slice(&buffer[..length]);
        }
        all
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

#[test]
fn every_byte_arrives_both_ways_whatever_the_room() {
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        for room in [1, 700, 5_000, 300_000] {
            let length = if room == 1 { 3_000 } else { 200_000 };
            let sent = pattern(length);
            let mut scene = Scene::open(room, version);
            let (mut up, mut down) = (Vec::new(), Vec::new());
            scene.client.ssl_write(&sent).unwrap();
            let mut written = 0;
            for _ in 0..2_000_000 {
                written += scene
                    .world
                    .from_backend
                    .write(&sent[written..])
                    .unwrap_or(0);
                scene.carry(true);
                up.append(&mut scene.world.to_backend.bytes);
                down.append(&mut scene.client_reads());
                if up.len() == sent.len() && down.len() == sent.len() {
                    break;
                }
            }
            assert!(
                up == sent && down == sent,
                "{room}: {} {}",
                up.len(),
                down.len()
            );
        }
    }
}

#[test]
fn an_idle_relay_keeps_no_buffer() {
    let mut scene = Scene::open(300_000, SslVersion::TLS1_3);
    scene.client.ssl_write(&pattern(100_000)).unwrap();
    for _ in 0..100 {
        scene.carry(true);
        scene.world.to_backend.bytes.clear();
    }
    assert_eq!(scene.relay.held(), 0);
}

#[test]
fn relay_does_not_read_for_a_client_that_does_not_read() {
    let mut scene = Scene::open(10_000, SslVersion::TLS1_3);
    let mut given = 0;
    for _ in 0..1_000 {
        given += (scene.world.from_backend)
            .write(&pattern(5_000))
            .unwrap_or(0);
        scene.carry(false);
    }
    // What the two pipes and one buffer hold.
    assert!(given < 10_000 + 10_000 + 2 * BUFFER_BYTES, "{given}");
    assert!(scene.most_held < 3 * BUFFER_BYTES, "{}", scene.most_held);
    // Meanwhile the client's bytes arrive.
    scene.client.ssl_write(b"cancel").unwrap();
    for _ in 0..10 {
        scene.carry(false);
    }
    assert_eq!(scene.world.to_backend.bytes, b"cancel");
}

#[test]
fn a_backend_that_does_not_read_does_not_stop_what_it_writes() {
    let mut scene = Scene::open(10_000, SslVersion::TLS1_3);
    for _ in 0..30 {
        scene.client.ssl_write(&pattern(10_000)).unwrap();
    }
    for _ in 0..200 {
        scene.carry(true);
    }
    assert_eq!(scene.world.to_backend.bytes.len(), 10_000);
    assert!(scene.most_held < 3 * BUFFER_BYTES, "{}", scene.most_held);
    scene.world.from_backend.write(b"answer").unwrap();
    for _ in 0..10 {
        scene.carry(true);
    }
    assert_eq!(scene.client_reads(), b"answer");
}

#[test]
fn a_client_that_ends_is_answered_still() {
    for says_so in [false, true] {
        let mut scene = Scene::open(2_000, SslVersion::TLS1_3);
        scene.client.ssl_write(&pattern(5_000)).unwrap();
        if says_so {
            let _ = scene.client.shutdown();
        }
        let mut up = Vec::new();
        for _ in 0..100 {
            if scene.client.get_mut().output.is_empty() && !says_so {
                scene.world.from_client.is_ended = true;
            }
            scene.carry(true);
            // The far end does not see the end before all bytes have been delivered.
            let delivered = up.len() + scene.world.to_backend.bytes.len();
            assert!(!scene.world.to_backend.is_ended || delivered == 5_000);
            up.append(&mut scene.world.to_backend.bytes);
        }
        assert_eq!(up, pattern(5_000));
        assert!(scene.world.to_backend.is_ended && scene.over.is_none());
        scene.world.from_backend.write(b"last").unwrap();
        scene.world.from_backend.is_ended = true;
        for _ in 0..10 {
            scene.carry(true);
        }
        assert_eq!(scene.over, Some(Turn::Over(None)));
        scene
            .client
            .get_mut()
            .input
            .append(&mut scene.world.to_client.bytes);
        assert_eq!(scene.client_reads(), b"last");
    }
}

#[test]
fn the_last_bytes_go_out_before_the_end() {
    let mut scene = Scene::open(3_000, SslVersion::TLS1_3);
    let mut down = Vec::new();
    let sent = pattern(50_000);
    let mut written = 0;
    for _ in 0..10_000 {
        written += (scene.world.from_backend.write(&sent[written..])).unwrap_or(0);
        scene.world.from_backend.is_ended = written == sent.len();
        scene.carry(true);
        down.append(&mut scene.client_reads());
    }
    let wire = scene.client.get_mut();
    wire.input.append(&mut scene.world.to_client.bytes);
    down.append(&mut scene.client_reads());
    assert!(down == sent && scene.over == Some(Turn::Over(None)));
    let end = scene.client.ssl_read(&mut [0; 10]).unwrap_err();
    assert_eq!(end.code(), ErrorCode::ZERO_RETURN);
}

#[test]
fn garbage_ends_the_handshake_and_the_session() {
    let mut scene = Scene::new(300_000, SslVersion::TLS1_3);
    scene.world.from_client.bytes = pattern(1_000);
    scene.carry(false);
    let over = format!("{:?}", scene.over);
    assert!(over.contains("could not accept SSL connection"), "{over}");

    let mut scene = Scene::open(300_000, SslVersion::TLS1_3);
    scene.world.from_client.bytes = pattern(1_000);
    scene.carry(false);
    let over = format!("{:?}", scene.over);
    assert!(over.contains("SSL error"), "{over}");
}

#[test]
fn half_a_handshake_and_no_more_is_the_end() {
    let mut scene = Scene::new(300_000, SslVersion::TLS1_3);
    let _ = scene.client.connect();
    scene.client.get_mut().output.truncate(50);
    scene.carry(false);
    assert_eq!(scene.over, None);
    scene.world.from_client.is_ended = true;
    scene.carry(false);
    let over = format!("{:?}", scene.over);
    assert!(over.contains("EOF detected"), "{over}");
}

#[test]
fn a_handshake_of_too_many_bytes_is_the_end() {
    let mut scene = Scene::new(300_000, SslVersion::TLS1_3);
    scene.relay.bytes_left = 1_000;
    // A record of the greatest length, which never ends.
    scene.world.from_client.bytes = b"\x16\x03\x01\x40\x00\x01\x01\x00\x00".to_vec();
    scene.world.from_client.bytes.resize(900, 0);
    scene.carry(false);
    assert_eq!(scene.over, None);
    scene.world.from_client.bytes.resize(101, 0);
    scene.carry(false);
    let over = format!("{:?}", scene.over);
    assert!(over.contains("too much was sent"), "{over}");
}

#[test]
fn what_comes_with_the_end_of_a_handshake_is_none_of_its_bytes() {
    let mut scene = Scene::new(300_000, SslVersion::TLS1_3);
    scene.relay.bytes_left = 2_000;
    // The client finishes the handshake and sends its startup packet along.
    for _ in 0..10 {
        if scene.client.connect().is_ok() {
            break;
        }
        scene.carry(true);
    }
    assert!(scene.relay.is_in_handshake());
    scene.client.ssl_write(&pattern(9_000)).unwrap();
    scene.carry(true);
    assert_eq!(scene.over, None);
    assert_eq!(scene.world.to_backend.bytes, pattern(9_000));
}

impl Scene {
    /// The client changes its keys so many times, and then sends this.
    fn changes_keys(&mut self, count: usize, then: &[u8]) {
        for _ in 0..count {
            openssl_functions::change_keys(self.client.ssl());
            self.client.do_handshake().unwrap();
        }
        if !then.is_empty() {
            self.client.ssl_write(then).unwrap();
        }
    }
}

#[test]
fn client_that_changes_its_keys_now_and_then_is_served() {
    let mut scene = Scene::open(300_000, SslVersion::TLS1_3);
    for _ in 0..10 {
        scene.changes_keys(5, b"x");
        scene.carry(true);
    }
    for _ in 0..100 {
        scene.changes_keys(1, &pattern(DATA_FOR_A_KEY_CHANGE));
        scene.carry(true);
    }
    assert_eq!(scene.over, None);
    let sent = 10 + 100 * DATA_FOR_A_KEY_CHANGE;
    let mut up = 0;
    for _ in 0..100 {
        up += std::mem::take(&mut scene.world.to_backend.bytes).len();
        scene.carry(true);
    }
    assert_eq!(up, sent);
}

#[test]
fn a_byte_of_data_pays_for_no_change_of_keys() {
    let mut scene = Scene::open(300_000, SslVersion::TLS1_3);
    let mut pieces = 0;
    while scene.over.is_none() {
        scene.changes_keys(20, b"x");
        scene.carry(true);
        pieces += 1;
        assert!(pieces * 20 <= SPARE_KEY_CHANGES + 20);
    }
    let over = format!("{:?}", scene.over);
    assert!(over.contains("changes its keys too often"), "{over}");
}

#[test]
fn all_that_one_read_brings_costs_few_changes_of_keys() {
    let mut scene = Scene::open(300_000, SslVersion::TLS1_3);
    for _ in 0..10 {
        scene.changes_keys(100, b"x");
    }
    scene.carry(true);
    let over = format!("{:?}", scene.over);
    assert!(over.contains("changes its keys too often"), "{over}");
}

#[test]
fn a_turn_of_short_records_is_a_single_read() {
    for (length, reads) in [(1, 1), (10_000, READS_A_TURN)] {
        let mut scene = Scene::open(300_000, SslVersion::TLS1_3);
        let mut sent = 0;
        while sent < 2 * READS_A_TURN * BUFFER_BYTES {
            scene.client.ssl_write(&pattern(length)).unwrap();
            sent = scene.client.get_mut().output.len();
        }
        scene.carry(false);
        let left = scene.world.from_client.bytes.len();
        assert_eq!(sent - left, reads * BUFFER_BYTES, "{length}");
    }
}
