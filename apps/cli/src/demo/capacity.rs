//! Checks that a demo fits the machine. Every node of a demo is a process, and too many processes
//! overload the machine long before they show anything about the multicast.

use evenfall_host::procstat::Room;
use evenfall_runtime::program::counted;

use super::{Args, processes};

/// Processes that a core carries. With 320 processes on two cores every message still arrives,
/// though half of them late. With twice as many the root gives up waiting for its nodes.
const PER_CORE_MAX: u64 = 200;
/// Memory of a process. A receiver has 2.7 MB of its own and a proxy 4.1 MB (measured), and the
/// kernel needs about as much again for their sockets.
const PROCESS_BYTES: u64 = 8 << 20;
/// Memory besides the processes. The judge joins their logs within this limit.
const JUDGE_BYTES: u64 = 256 << 20;
/// Threads of a process: its own thread, and the watch on its lifeline.
const PROCESS_TASKS: u64 = 2;
/// Threads besides: six of the root's HTTP server, and three of this program.
const SPARE_TASKS: u64 = 16;
/// Open files besides one log per process, all of which the judge opens. Half of this number is in
/// use already.
const SPARE_FILES: u64 = 64;

/// The number of processes that fit, and the resource that allows no more.
fn most(room: &Room) -> (u64, String) {
    let cores = {
        let words = counted(room.cores as usize, "core");
        (room.cores * PER_CORE_MAX, format!("{words} at {PER_CORE_MAX} each"))
    };
    let limit = |left: Option<u64>, spare: u64, each: u64, words: &dyn Fn(u64) -> String| {
        left.map(|left| (left.saturating_sub(spare) / each, words(left)))
    };
    let others = [
        limit(room.memory_bytes, JUDGE_BYTES, PROCESS_BYTES, &|left| {
            let (left, each) = (left >> 20, PROCESS_BYTES >> 20);
            format!("{left} MiB of free memory at {each} MiB each")
        }),
        limit(room.tasks, SPARE_TASKS, PROCESS_TASKS, &|left| {
            format!("{left} more threads allowed at {PROCESS_TASKS} each (ulimit -u)")
        }),
        limit(room.files, SPARE_FILES, 1, &|left| {
            format!("{left} open files allowed, a log of each to be read (ulimit -n)")
        }),
    ];
    let all = others.into_iter().flatten().chain([cores]);
    all.min_by_key(|(processes, _)| *processes).unwrap_or_default()
}

/// Refuses a demo that does not fit, and says how many receivers fit.
pub fn check(args: &Args) -> Result<(), String> {
    check_in(&evenfall_host::procstat::room(), args)
}

fn check_in(room: &Room, args: &Args) -> Result<(), String> {
    let (most, why) = most(room);
    let needs = |receivers| processes::hosts(args, receivers);
    let wanted = needs(args.receivers);
    if wanted <= most {
        return Ok(());
    }
    // More receivers never need fewer processes, so the largest number that fits lies between these
    // two.
    let (mut fits, mut fits_not) = (0, args.receivers);
    while fits_not - fits > 1 {
        let between = fits + (fits_not - fits) / 2;
        if needs(between) <= most { fits = between } else { fits_not = between }
    }
    let advice = match fits {
        0 => "raise that limit, or ask for fewer proxies: a smaller --depth, --fanout, --trees or \
              --spares"
            .to_owned(),
        _ => format!("--receivers {fits} fits; `evenfall sim multicast` has room for more"),
    };
    let receivers = args.receivers;
    // A sum that is too large for its type stays at the greatest number.
    let wanted = match wanted {
        u64::MAX => "more than 10^19".to_owned(),
        _ => wanted.to_string(),
    };
    Err(format!(
        "--receivers {receivers} takes {wanted} processes, and this machine carries {most} \
         ({why}). {advice}"
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Demo {
        #[command(flatten)]
        args: Args,
    }

    fn said(room: &Room, words: &[&str]) -> Result<(), String> {
        let words = ["demo"].iter().chain(words);
        check_in(room, &Demo::parse_from(words).args)
    }

    #[test]
    fn what_fits_is_said_and_does_fit() {
        let ample = Room { cores: 2, memory_bytes: None, tasks: None, files: None };
        let tight = [
            ample,
            Room { memory_bytes: Some(1 << 30), ..ample },
            Room { tasks: Some(100), ..ample },
            Room { files: Some(100), ..ample },
        ];
        let words = ["2 cores", "1024 MiB of free memory", "ulimit -u", "ulimit -n"];
        for (room, word) in tight.iter().zip(words) {
            assert_eq!(said(room, &[]), Ok(()), "the default fits");
            let error = said(room, &["--receivers", "100000"]).unwrap_err();
            assert!(error.contains("takes 100318 processes") && error.contains(word), "{error}");
            let (_, fits) = error.split_once(". --receivers ").unwrap();
            let fits: u32 = fits.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(said(room, &["--receivers", &fits.to_string()]), Ok(()));
            assert!(said(room, &["--receivers", &(fits + 1).to_string()]).is_err());
        }
    }

    #[test]
    fn proxies_without_end_are_refused_too() {
        let room = Room { cores: 2, memory_bytes: None, tasks: None, files: None };
        for words in [
            &["--depth", "255", "--receivers", "4294967295"][..],
            &["--depth", "64", "--fanout", "65535"],
            &["--spares", "4294967295", "--trees", "64"],
        ] {
            let error = said(&room, words).unwrap_err();
            assert!(error.contains("fewer proxies") || error.contains("fits"), "{error}");
            assert!(!error.contains(&u64::MAX.to_string()), "{error}");
        }
    }
}
