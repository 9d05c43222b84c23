//! What the launcher is asked, and says: parameters, and who may log in.

use super::Dispatcher;
use crate::core::PoolSettings;
use crate::shell::batch_scheduling;
use crate::shell::link::layout::shared::*;
use crate::shell::link::wire::{Answer, Frame, Malformed, Reader, Writer};
use crate::shell::login::launcher::{parse_parameters, Asker};
use crate::shell::parameters::Parameters;
use crate::shell::tls::threads;
use std::sync::Arc;
use tracing::{info, warn};

impl Dispatcher {
    /// A launcher that is new takes over; open questions are asked again, once.
    pub(super) fn launcher_connected(&mut self, number: u32) {
        let old = self.launcher.is_at(number);
        self.logins.launcher_is(true);
        if let Some(old) = old {
            self.connections.close(old);
        }
        let given_up = self.launcher.ask_again(&mut self.connections);
        self.scheduler.ask_limits_again();
        for (question, answer) in given_up {
            self.answered(question.asker, question.generation, answer);
        }
    }

    pub(super) fn launcher_gone(&mut self, number: u32) {
        if self.launcher.is_gone(number, self.now.us) {
            self.logins.launcher_is(false);
            if !self.server.is_stopping() {
                warn!("the launcher has gone; sessions go on, nobody can log in until it is back");
            }
        }
    }

    /// What the scheduler wants to know of the launcher. At the end of each round: a
    /// launcher that comes later is asked about limits anew.
    pub(super) fn ask_what_pools_want(&mut self) {
        for ask in self.scheduler.take_asks() {
            let (role, database) = (ask.role, ask.database);
            let frame = Writer::new(MSG_POOL_QUESTION, 0).u32(role).u32(database);
            self.launcher.send(frame.finish(), &mut self.connections);
        }
    }

    /// Questions whose asker has gone are forgotten.
    pub(super) fn forget_questions(&mut self) {
        let logins = &self.logins;
        (self.launcher).forget_questions(|Asker { login, serial }| logins.has(login, serial));
    }

    pub(super) fn login_answered(
        &mut self,
        number: u32,
        serial: u64,
        generation: u64,
        answer: Arc<Answer>,
    ) {
        let group = (answer.role, answer.database);
        let is_full = self.scheduler.is_pool_memory_full(group);
        (self.logins).answered(number, serial, generation, answer, is_full);
    }

    fn answered(&mut self, asker: Asker, generation: u64, answer: Arc<Answer>) {
        self.login_answered(asker.login, asker.serial, generation, answer);
        self.logins_want();
    }

    pub(super) fn launcher_frame(&mut self, frame: Frame<'_>) -> Result<(), Malformed> {
        match frame.kind {
            MSG_PASSPHRASE => self.logins.keep_passphrase(frame.payload),
            MSG_PARAMETERS => {
                let mut parameters = Parameters::clone(&self.parameters);
                parse_parameters(frame.payload, &mut parameters)?;
                self.reconfigure(parameters);
            }
            MSG_LOGIN_ANSWER => {
                let (request, answer) = Answer::parse(frame.payload)?;
                let answer = Arc::new(answer);
                // What the launcher has noticed of settings counts for this client.
                self.look_at_settings();
                if let Some(question) = self.launcher.answered(request) {
                    let (asker, generation) = (question.asker, question.generation);
                    let is_of_now = question.settings == self.scheduler.settings_generation();
                    if answer.good_until != 0 && is_of_now {
                        (self.logins).keep_answer(question.who, generation, answer.clone());
                    }
                    self.answered(asker, generation, answer);
                }
            }
            MSG_POOL_SETTINGS => {
                let mut reader = Reader(frame.payload);
                let group = (reader.u32()?, reader.u32()?);
                let mut values = [0; POOL_SETTINGS.len()];
                let mut sources = [0; POOL_SETTINGS.len()];
                for (value, source) in values.iter_mut().zip(&mut sources) {
                    *value = reader.i32()?;
                    *source = reader.u32()?;
                }
                let settings = PoolSettings { values, sources };
                self.scheduler.set_pool_limits(group, settings);
            }
            MSG_SHUTDOWN => self.server_stops(),
            _ => return Err(Malformed),
        }
        Ok(())
    }

    fn reconfigure(&mut self, parameters: Parameters) {
        if parameters == *self.parameters {
            return;
        }
        info!("parameters reloaded");
        batch_scheduling::set_most_wait_us(parameters.batch_scheduling_wait_us);
        threads::set_rest_at_once(parameters.force_migration);
        self.parameters = Arc::new(parameters);
        self.logins.reconfigure(Arc::clone(&self.parameters));
        self.show_parameters();
        (self.scheduler).reconfigure(Arc::clone(&self.parameters));
    }
}
