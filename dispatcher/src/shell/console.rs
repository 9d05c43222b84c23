//! The connections of consoles (`crate::console`), and what each one does at the moment.
//!
//! A console takes no session slot and no backend. There are few at a time, and some of them are
//! kept for superusers. Of what a console sends one message is kept, and of what it is sent one
//! slice: while a client does not read, no more is made.

use super::events::{token, Slab, Source};
use super::link::layout::LoginMarks;
use super::scheduler::{ConsoleFacts, Listing};
use super::sys::epoll::{self, ClientNumber, Epoll};
use super::sys::socket;
use super::tls::{Facts, HandedEnd};
use crate::console::conversation::{Conversation, Run};
use crate::console::{Access, Layout};
use crate::core::may_take;
use crate::protocol::Report;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Consoles at a time, and how many of them only superusers get. Each has some ten kilobytes.
const MOST: usize = 64;
const FOR_SUPERUSERS: usize = 8;
const MOST_DISABLED: usize = 1000;
/// Bit of the number by which the core knows a console that pauses: no control connection has it.
const ASKER: u32 = 1 << 31;

/// What a console waits for.
pub enum Job {
    /// The rows of a result.
    Rows(Listing),
    /// The launcher is asked for the database that the command names.
    Find,
    /// The backends of this database (None: all) that are to leave have not left.
    WaitClose { database: Option<u32> },
    /// A pause is to stand. `asked`: the core has not answered.
    Pause { asked: bool },
    /// The same, and the sessions of this database (None: of all) end, from this slot on.
    Kill {
        database: Option<u32>,
        next: u32,
        asked: bool,
        stands: bool,
    },
}

pub struct Console {
    socket: HandedEnd,
    /// The socket is in the epoll.
    watched: bool,
    pub access: Access,
    pub role: u32,
    /// The login changes by which it may no longer be what it was; and up to which generation
    /// none of them has happened.
    pub marks: LoginMarks,
    pub generation: u64,
    key: Vec<u8>,
    /// Distinguishes it from others that have had its number.
    pub serial: u64,
    pub facts: ConsoleFacts,
    pub conversation: Conversation,
    /// What is to be sent, and how much of it was.
    pub out: Vec<u8>,
    sent: usize,
    pub job: Option<(Run, Job)>,
    /// The connection ends when all is sent.
    pub ends: bool,
}

impl Console {
    pub fn tls(&self) -> Option<&Facts> {
        self.socket.tls().map(AsRef::as_ref)
    }
}

/// What the socket of a console has said.
#[derive(PartialEq, Eq)]
pub enum Heard {
    Something,
    Nothing,
    Gone,
}

impl Console {
    /// Reads once.
    pub fn read(&mut self) -> Heard {
        let mut bytes = [0; 4096];
        let room = self.conversation.wanted().min(bytes.len());
        match socket::receive(self.socket.fd(), &mut bytes[..room]) {
            Ok(0) => Heard::Gone,
            Ok(length) => {
                self.conversation.receive(&bytes[..length]);
                Heard::Something
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Heard::Nothing,
            Err(_) => Heard::Gone,
        }
    }

    /// Sends what is to be sent. None: the client has gone; false: something is left.
    pub fn flush(&mut self) -> Option<bool> {
        while self.sent < self.out.len() {
            match socket::send(self.socket.fd(), &self.out[self.sent..]) {
                Ok(length) => self.sent += length,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Some(false),
                Err(_) => return None,
            }
        }
        self.out.clear();
        // A long result does not keep its memory.
        self.out.shrink_to(4096);
        self.sent = 0;
        Some(true)
    }
}

/// What a new console is made of.
pub struct NewConsole {
    pub socket: HandedEnd,
    pub watched: bool,
    pub access: Access,
    pub role: u32,
    pub marks: LoginMarks,
    pub generation: u64,
    pub key_bytes: usize,
    pub layout: Layout,
    /// Its number is filled in.
    pub facts: ConsoleFacts,
    pub out: Vec<u8>,
}

/// All consoles. An entry is empty while its console is in use.
pub struct Consoles {
    /// Databases that no client may log in to, by OID, with their names.
    disabled: BTreeMap<u32, Vec<u8>>,
    epoll: Arc<Epoll>,
    client_number: Arc<ClientNumber>,
    all: Slab<Option<Box<Console>>>,
    next_serial: u64,
    /// Consoles that go on in the next round even if no event comes.
    busy: Vec<u32>,
}

impl Consoles {
    pub fn new(epoll: Arc<Epoll>, client_number: Arc<ClientNumber>) -> Consoles {
        Consoles {
            disabled: BTreeMap::new(),
            epoll,
            client_number,
            all: Slab::new(MOST),
            next_serial: 0,
            busy: Vec::new(),
        }
    }

    pub fn asker(number: u32) -> u32 {
        number | ASKER
    }

    /// The console that the core knows by this number.
    pub fn of_asker(asker: u32) -> Option<u32> {
        (asker & ASKER != 0).then_some(asker & !ASKER)
    }

    pub fn disabled(&self) -> &BTreeMap<u32, Vec<u8>> {
        &self.disabled
    }

    /// False: too many databases are.
    pub fn disable(&mut self, database: u32, name: &[u8]) -> bool {
        let may = self.disabled.len() < MOST_DISABLED || self.disabled.contains_key(&database);
        if may {
            self.disabled.insert(database, name.to_vec());
        }
        may
    }

    pub fn enable(&mut self, database: u32) {
        self.disabled.remove(&database);
    }

    /// Is there room for one more of this role?
    pub fn has_room(&self, role: u32, access: Access) -> bool {
        let left = MOST - self.all.len();
        if access == Access::All {
            return left > 0;
        }
        let all = self.all.iter().filter_map(|(_, console)| console.as_ref());
        let own = all.filter(|console| console.role == role).count();
        may_take(own, left.saturating_sub(FOR_SUPERUSERS), MOST / 2) > 0
    }

    /// The number of the new console, its process ID for a cancel request, and its key. An error
    /// if there is no room.
    pub fn begin(&mut self, new: NewConsole) -> Result<(u32, Vec<u8>), HandedEnd> {
        let NewConsole { socket, .. } = new;
        if !self.all.has_room() {
            return Err(socket);
        }
        let key: Vec<u8> = (0..new.key_bytes).map(|_| rand::random()).collect();
        let number = self.all.insert(None).unwrap_or_default();
        self.next_serial += 1;
        let serial = self.next_serial;
        self.put(
            number,
            Box::new(Console {
                socket,
                watched: new.watched,
                access: new.access,
                role: new.role,
                marks: new.marks,
                generation: new.generation,
                key: key.clone(),
                serial,
                facts: ConsoleFacts {
                    id: number + 1,
                    ..new.facts
                },
                conversation: Conversation::new(new.layout),
                out: new.out,
                sent: 0,
                job: None,
                ends: false,
            }),
        );
        Ok((number, key))
    }

    /// Takes a console for use; [`Consoles::put`] or [`Consoles::close`] follows.
    pub fn take(&mut self, number: u32) -> Option<Box<Console>> {
        self.all.get_mut(number)?.take()
    }

    pub fn put(&mut self, number: u32, console: Box<Console>) {
        if let Some(entry) = self.all.get_mut(number) {
            *entry = Some(console);
        }
    }

    /// Ends the connection.
    pub fn close(&mut self, number: u32, console: Box<Console>) {
        let fd = console.socket.fd();
        socket::discard_input(fd);
        self.client_number.let_go(fd);
        self.all.remove(number);
        self.busy.retain(|busy| *busy != number);
    }

    /// Waits for an event of the socket: that the client sends or, if `to_send`, that it reads.
    /// None: that it goes. False if that is not possible.
    pub fn watch(&self, number: u32, console: &mut Console, to_send: Option<bool>) -> bool {
        let events = match to_send {
            Some(true) => epoll::OUT,
            Some(false) => epoll::IN,
            None => 0,
        };
        let events = events | epoll::RDHUP | epoll::ONESHOT;
        let known = std::mem::replace(&mut console.watched, true);
        let data = token(Source::Console, number);
        let fd = console.socket.fd();
        let watched = (self.client_number).watch(&self.epoll, fd, known, events, data);
        watched.is_ok()
    }

    pub fn goes_on(&mut self, number: u32) {
        self.busy.push(number);
    }

    pub fn go_on_first(&mut self, mut numbers: Vec<u32>) {
        numbers.append(&mut self.busy);
        self.busy = numbers;
    }

    pub fn are_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    pub fn take_busy(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.busy)
    }

    pub fn numbers(&self) -> Vec<u32> {
        self.all.iter().map(|(number, _)| number).collect()
    }

    /// The console that a cancel request with this key means.
    pub fn of_key(&self, key: &[u8]) -> Option<u32> {
        let consoles = self.all.iter();
        let mut consoles = consoles.filter_map(|(number, it)| Some((number, it.as_ref()?)));
        let is_its = |it: &Console| it.key.len() == key.len() && openssl::memcmp::eq(&it.key, key);
        consoles
            .find(|(_, it)| is_its(it))
            .map(|(number, _)| number)
    }

    /// What SHOW CLIENTS says of all of them; `own` is the one in use.
    pub fn facts(&self, own: &ConsoleFacts) -> Vec<ConsoleFacts> {
        let others = self.all.iter().filter_map(|(_, console)| console.as_ref());
        let others = others.map(|console| console.facts.clone());
        others.chain([own.clone()]).collect()
    }

    /// Sends all consoles this last word, and ends them.
    pub fn end_all(&mut self, report: &Report) {
        for number in self.numbers() {
            if let Some(mut console) = self.take(number) {
                report.encode(&mut console.out);
                let _ = console.flush();
                self.close(number, console);
            }
        }
    }
}

/// The error for a client that finds no place.
pub fn too_many() -> Report {
    Report::fatal(b"53300", "sorry, too many clients already").with_detail(format!(
        "There are as many consoles as there can be: {MOST}, of which {FOR_SUPERUSERS} are for superusers."
    ))
}
