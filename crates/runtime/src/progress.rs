//! What a person sees while a command works: a line for each stage, and a bar that moves.
//!
//! Progress goes to standard error, so that standard output carries the answer alone. A terminal
//! shows the stage at work as a bar below the stages that are over. Elsewhere (a file, a pipe) each
//! stage is a plain line, and a long stage says now and then how far it is.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a long stage writes a line where there is no terminal: a log of an hour stays below
/// four hundred lines.
const PLAIN_EVERY: Duration = Duration::from_secs(10);
/// How often the bar moves by itself, so that a person sees that the program is alive.
const TICK: Duration = Duration::from_millis(120);

/// The progress of one command.
pub struct Progress {
    /// Draws on a terminal and nowhere else.
    bar: ProgressBar,
    is_terminal: bool,
    stage: Cell<Instant>,
    /// When a plain line was written last.
    said: Cell<Instant>,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Progress on standard error.
    pub fn new() -> Self {
        let is_terminal = io::stderr().is_terminal();
        let target =
            if is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let now = Instant::now();
        Self { bar, is_terminal, stage: Cell::new(now), said: Cell::new(now) }
    }

    /// A stage begins, of so many steps where that is known. The stage before is over.
    pub fn stage(&self, words: &str, steps: Option<u64>) {
        self.end_stage();
        self.stage.set(Instant::now());
        self.said.set(Instant::now());
        if !self.is_terminal {
            say(words);
            return;
        }
        let template = match steps {
            Some(_) => "{spinner} {msg} [{bar:30}] {human_pos} of {human_len}",
            None => "{spinner} {msg} {elapsed}",
        };
        let style = ProgressStyle::with_template(template);
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.reset();
        self.bar.set_length(steps.unwrap_or(0));
        self.bar.set_message(words.to_owned());
        self.bar.enable_steady_tick(TICK);
    }

    /// So many steps of the stage are done.
    pub fn at(&self, done: u64, steps: u64) {
        self.bar.set_position(done);
        if !self.is_terminal && self.said.get().elapsed() >= PLAIN_EVERY {
            self.said.set(Instant::now());
            say(&format!("  {done} of {steps}"));
        }
    }

    /// The stage is over. The terminal keeps its line, with how long it took.
    fn end_stage(&self) {
        let words = self.bar.message();
        if self.is_terminal && !words.is_empty() {
            let took = Duration::from_millis(self.stage.get().elapsed().as_millis() as u64);
            self.bar.println(format!("{words} ({})", humantime::format_duration(took)));
        }
    }

    /// A line between the stages.
    pub fn note(&self, words: &str) {
        if self.is_terminal {
            self.bar.println(words);
        } else {
            say(words);
        }
    }

    /// Everything is over: what follows is the answer.
    pub fn end(&self) {
        self.end_stage();
        self.bar.set_message("");
        self.bar.finish_and_clear();
    }
}

/// A line on standard error. Nobody may read it, and that is no reason to end.
fn say(words: &str) {
    writeln!(io::stderr(), "{words}").ok();
}
