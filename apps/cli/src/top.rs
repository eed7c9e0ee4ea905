//! `evenfall top`: the state of a run in a terminal. It shows the picture of the live page.

mod screen;
mod terminal;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use evenfall_host::interrupt;

use self::screen::{ShownRun, TopScreen, TopView};
use self::terminal::RawTerminal;
use crate::Outcome;
use crate::watch::{LOOK_EVERY, RunObserver, WatchedRun, wait_until};

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks at the size of the terminal.
const SIZE_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks for a key. A person does not notice the wait.
const KEY_LOOK: Duration = Duration::from_millis(25);

/// Arguments of `evenfall top`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    run: WatchedRun,
}

pub fn main(args: &Args) -> Outcome {
    interrupt::install()?;
    let mut observer = RunObserver::new(&args.run.page_owners()?)?;
    if io::stdout().is_terminal() && io::stdin().is_terminal() {
        show_screen(&mut observer)
    } else {
        print_lines(&mut observer)
    }
}

/// A line a second, for pipes and logs. The end of the pipe ends the program.
fn print_lines(observer: &mut RunObserver) -> Outcome {
    while !interrupt::raised() {
        let next = Instant::now() + LINE_EVERY;
        observer.look();
        let line = screen::line_of_run(observer.present_picture());
        if writeln!(io::stdout(), "{line}").is_err() {
            return Ok(());
        }
        wait_until(next);
    }
    Ok(())
}

fn show_screen(observer: &mut RunObserver) -> Outcome {
    let mut terminal = RawTerminal::enter()?;
    let mut view = TopView::default();
    let (mut size, mut size_at) = (terminal.size(), Instant::now());
    let mut look_at = Instant::now();
    let has_colour = std::env::var_os("NO_COLOR").is_none();
    while !interrupt::raised() {
        let now = Instant::now();
        let mut is_new = false;
        if now >= look_at {
            look_at = now + LOOK_EVERY;
            observer.look();
            is_new = true;
        }
        if now >= size_at {
            size_at = now + SIZE_EVERY;
            size = terminal.size();
        }
        while let Some(key) = terminal.next_key() {
            if !view.press_key(key, observer.present_picture().nodes.len()) {
                return Ok(());
            }
            is_new = true;
        }
        if is_new {
            let line_of = |node: u32| -> Vec<f64> { observer.line_of(node).collect() };
            let events = observer.events().map(|event| event.text.clone()).collect();
            let shown = ShownRun { picture: observer.present_picture(), line_of: &line_of, events };
            let screen = TopScreen { columns: size.0, rows: size.1, has_colour };
            terminal.draw(&screen.render_lines(&shown, &mut view))?;
        }
        std::thread::sleep(KEY_LOOK);
    }
    Ok(())
}
