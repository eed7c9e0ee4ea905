//! `evenfall files`.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use evenfall_files_service::settings::{DATASERVER, FilesNode};
use evenfall_files_service::{
    BytesSource, Fetched, FilesClient, Options, ReadLimits, ServiceError, Settings,
    user_of_environment,
};
use evenfall_runtime::address::{HostPort, look_up};
use evenfall_runtime::listing::printable;
use evenfall_runtime::progress::Progress;
use humantime::parse_duration;
use serde_json::{Value, json};

use super::download_target::DownloadTarget;
use crate::Outcome;

/// Files from this length on show their progress.
const LONG_BYTES: u64 = 8 << 20;

/// Arguments of `evenfall files`.
#[derive(clap::Args, Debug)]
pub struct FilesArgs {
    #[command(subcommand)]
    command: FilesCommand,
    /// Port of the nameserver on this machine, or HOST:PORT of a nameserver [default: 9870, or the
    /// nameserver of --config].
    #[arg(long, global = true, value_name = "PORT", value_parser = server)]
    webhdfs: Option<String>,
    /// Settings file of the cluster, which has the address of the nameserver and the key.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Connect to other hosts without a key. Everything is then sent in clear, and the cluster
    /// needs files.open = true.
    #[arg(long, global = true)]
    open: bool,
    /// Longest time to repeat a request without success.
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        default_value = "30s",
        value_parser = parse_duration
    )]
    patience: Duration,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand, Debug)]
enum FilesCommand {
    /// List a directory, or one file.
    Ls {
        /// The path on the nameserver, which begins with /.
        #[arg(value_parser = remote)]
        path: String,
    },
    /// Show the status of a file or a directory.
    Stat {
        /// The path on the nameserver, which begins with /.
        #[arg(value_parser = remote)]
        path: String,
    },
    /// Make a directory and all missing directories above it.
    Mkdir {
        /// The path on the nameserver, which begins with /.
        #[arg(value_parser = remote)]
        path: String,
    },
    /// Make a file from a local file; - reads standard input.
    Put {
        /// The local file, or -.
        local: PathBuf,
        /// The path on the nameserver, which begins with /.
        #[arg(value_parser = remote)]
        path: String,
        /// Replace a file that is there.
        #[arg(long)]
        force: bool,
        /// Number of copies of the file, by default 3.
        #[arg(long, value_name = "COUNT")]
        copies: Option<u16>,
    },
    /// Copy a file to a local file; - writes standard output.
    Get {
        /// The path on the nameserver, which begins with /.
        #[arg(value_parser = remote)]
        path: String,
        /// The local file, or -.
        local: PathBuf,
        /// Connections that read at once [default: files.read_connections of --config, or 2]. To
        /// standard output, one connection reads after the other.
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=8))]
        connections: Option<u8>,
    },
    /// Append a local file, which stays as it is; - reads standard input.
    Append {
        /// The local file, or -.
        local: PathBuf,
        /// The path on the nameserver, which begins with /.
        #[arg(value_parser = remote)]
        path: String,
    },
    /// Delete a file or an empty directory.
    Rm {
        /// The path on the nameserver, which begins with /.
        #[arg(value_parser = remote)]
        path: String,
        /// Also delete a directory with everything below it.
        #[arg(long)]
        recursive: bool,
    },
    /// Move a file or a directory. If the new path is a directory, the entry moves into that
    /// directory.
    Mv {
        /// The present path, which begins with /.
        #[arg(value_parser = remote)]
        from: String,
        /// The new path, which begins with /.
        #[arg(value_parser = remote)]
        to: String,
        /// Replace a file that is there.
        #[arg(long)]
        force: bool,
    },
    /// Name files that lack copies or bytes, and fail when there are any.
    Fsck,
    /// Show the dataservers.
    Status,
    /// Show who writes which file: the leases of writers, since when and until when.
    Leases,
    /// Move all copies away from a dataserver, so that the dataserver can be removed.
    Decommission {
        /// The name, the address or the disk of the dataserver, as `evenfall files status` shows
        /// them.
        server: String,
        /// Let the dataserver take copies again.
        #[arg(long)]
        undo: bool,
    },
    /// Give up dataservers that never come back, so that nothing waits for them. A dataserver that
    /// was given up needs an empty directory to come back.
    Forget {
        /// The names, the addresses or the disks of the dataservers.
        #[arg(required = true)]
        servers: Vec<String>,
        /// Also give up bytes that are on the disks of these dataservers alone.
        #[arg(long)]
        force: bool,
    },
    /// Move copies from full disks to empty ones until their used shares differ by a tenth at most.
    Balance {
        /// Most megabytes that move in a second.
        #[arg(long, value_name = "MEGABYTES", default_value_t = 50)]
        rate: u64,
        /// Move no further copies.
        #[arg(long)]
        stop: bool,
    },
    /// Write the log of a nameserver that lost its disk, from the copies on dataservers. Run this
    /// command on the host of the nameserver while the nameserver is down. Give --config, or both
    /// --names and --from.
    Rebuild {
        /// Directory for the log of the nameserver.
        #[arg(long, value_name = "DIR", requires = "from")]
        names: Option<PathBuf>,
        /// Addresses of all dataservers of the cluster, with commas between them.
        #[arg(
            long,
            value_name = "ADDRESS",
            value_delimiter = ',',
            requires = "names",
            value_parser = look_up
        )]
        from: Vec<SocketAddr>,
        /// Rebuild even if a silent dataserver may have a newer copy.
        #[arg(long)]
        force: bool,
    },
}

/// A port of this machine, or a host with its port.
fn server(text: &str) -> Result<String, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(format!("127.0.0.1:{port}"));
    }
    let address: Result<HostPort, _> = text.parse();
    address.map(|at| at.to_string()).map_err(|error| format!("give a port, or HOST:PORT: {error}"))
}

/// A path of the nameserver.
fn remote(text: &str) -> Result<String, String> {
    match text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err("a path of the nameserver begins with /".into()),
    }
}

fn is_dash(local: &Path) -> bool {
    local.as_os_str() == "-"
}

/// The source of a transfer, and its length where that is known.
fn source(local: &Path) -> Result<(BytesSource, Option<u64>), String> {
    if is_dash(local) {
        return Ok((BytesSource::Stream(Box::new(io::stdin())), None));
    }
    let failed = |error| format!("open {}: {error}", local.display());
    let (file, about) = File::open(local)
        .and_then(|file| file.metadata().map(|about| (file, about)))
        .map_err(failed)?;
    match about.is_file() {
        true => Ok((BytesSource::File(local.to_owned()), Some(about.len()))),
        false if about.is_dir() => Err(format!("{} is a directory", local.display())),
        // A pipe gives its bytes once.
        false => Ok((BytesSource::Stream(Box::new(file)), None)),
    }
}

/// The progress of a transfer. A short transfer shows no progress.
struct Bar {
    progress: Option<Progress>,
    length: u64,
}

impl Bar {
    fn new(words: &str, length: Option<u64>) -> Self {
        let is_long = length.is_none_or(|length| length >= LONG_BYTES);
        let progress = is_long.then(Progress::new);
        if let Some(progress) = &progress {
            progress.stage(words, length);
        }
        Self { progress, length: length.unwrap_or(0) }
    }

    fn at(&self, done: u64) {
        if let Some(progress) = &self.progress {
            progress.at(done, self.length.max(done));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(progress) = &self.progress {
            progress.end();
        }
    }
}

/// Writes the log of a nameserver from the copies on dataservers.
fn rebuild(
    settings: Option<&Settings>,
    given: Option<(&PathBuf, &[SocketAddr])>,
    is_forced: bool,
) -> Outcome {
    let (options, from) = match (given, settings) {
        (Some((names, from)), _) => {
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            (Options::local(any, any, names.clone()), from.to_vec())
        }
        (None, Some(settings)) => {
            let all = settings.nodes.iter().filter(|node| node.plain.role == DATASERVER);
            let options = Options::of(settings, settings.nameserver()?)?;
            (options, all.map(FilesNode::reached_at).collect::<Result<Vec<_>, _>>()?)
        }
        (None, None) => return Err("give --config FILE, or --names DIR and --from ADDRESS".into()),
    };
    let rebuilt = evenfall_files_service::rebuild(&options, &from, is_forced)?;
    say!("rebuilt {} bytes of names from the copy of {}", rebuilt.bytes, rebuilt.from);
    Ok(())
}

pub fn files(args: &FilesArgs) -> Outcome {
    let settings = args.config.as_ref().map(|file| Settings::load(file, &[])).transpose()?;
    if let FilesCommand::Rebuild { names, from, force } = &args.command {
        let given = names.as_ref().map(|names| (names, from.as_slice()));
        return rebuild(settings.as_ref(), given, *force);
    }
    let own = settings.as_ref().map(|settings| settings.nameserver()).transpose()?;
    let nameserver = match (&args.webhdfs, own) {
        (Some(given), _) => given.clone(),
        (None, Some(own)) => own.reached_by().to_string(),
        (None, None) => "127.0.0.1:9870".to_owned(),
    };
    let key = settings.as_ref().map(Settings::key).transpose()?.flatten();
    let client = FilesClient::new(&nameserver, &user_of_environment(), args.patience).keyed(key);
    let flowserver = settings.as_ref().and_then(Settings::flowserver).cloned();
    let client = client.steered(flowserver).open_to_other_hosts(args.open);
    let limits = settings.as_ref().map(|settings| settings.files.read_limits());
    let limits = limits.unwrap_or_default();
    match &args.command {
        FilesCommand::Ls { path } => {
            client.list(path, &mut |one| print_entry(one, path, args.json))?;
        }
        FilesCommand::Stat { path } => {
            let value = client.get(path, "GETFILESTATUS", &[])?;
            print_entry(&value["FileStatus"], path, args.json);
        }
        FilesCommand::Mkdir { path } => drop(client.change(path, "MKDIRS", &[])?),
        FilesCommand::Put { local, path, force, copies } => {
            let (source, length) = source(local)?;
            let bar = Bar::new(&format!("put {path}"), length);
            client.put(source, path, *force, *copies, &mut |done| bar.at(done))?;
        }
        FilesCommand::Append { local, path } => {
            let (source, length) = source(local)?;
            let bar = Bar::new(&format!("append to {path}"), length);
            client.append(source, path, &mut |done| bar.at(done))?;
        }
        FilesCommand::Get { path, local, connections } => {
            let connections = connections.map_or(limits.connections, usize::from);
            let client = client.within_limits(ReadLimits { connections, ..limits });
            get(&client, path, local, args.json)?;
        }
        FilesCommand::Rm { path, recursive } => {
            if !client.delete(path, *recursive)? {
                return Err(format!("{path} does not exist").into());
            }
        }
        FilesCommand::Mv { from, to, force } => mv(&client, from, to, *force)?,
        FilesCommand::Fsck => return fsck(&client.report("fsck")?, args.json),
        FilesCommand::Status => print_status(&client.report("status")?, args.json),
        FilesCommand::Leases => print_leases(&client.report("leases")?, args.json),
        FilesCommand::Decommission { server, undo } => {
            let order = if *undo { "stay" } else { "leave" };
            client.order(order, &[("server", server)])?;
        }
        FilesCommand::Forget { servers, force } => {
            let (servers, force) = (servers.join(","), force.to_string());
            client.order("forget", &[("server", &servers), ("force", &force)])?;
        }
        FilesCommand::Rebuild { .. } => unreachable!("this command has run above"),
        FilesCommand::Balance { rate, stop } => {
            let rate = if *stop { 0 } else { *rate };
            let bytes = rate.saturating_mul(1_000_000).to_string();
            client.order("balance", &[("bytes", &bytes)])?;
        }
    }
    Ok(())
}

/// Moves a file. A rename with options never moves an entry into a directory, so the name of the
/// entry is added to the path here.
fn mv(client: &FilesClient, from: &str, to: &str, force: bool) -> Outcome {
    let mut to = to.to_owned();
    if let Ok(there) = client.get(&to, "GETFILESTATUS", &[])
        && there["FileStatus"]["type"] == "DIRECTORY"
    {
        let name = from.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        to = format!("{}/{name}", to.trim_end_matches('/'));
    }
    let options = if force { "OVERWRITE" } else { "NONE" };
    let arguments = [("destination", to.as_str()), ("renameoptions", options)];
    client.change(from, "RENAME", &arguments)?;
    Ok(())
}

/// Copies a file to a local file, a device or a pipe.
fn get(client: &FilesClient, path: &str, local: &Path, json: bool) -> Outcome {
    if is_dash(local) {
        return stream(client, path, &mut evenfall_runtime::program::Stdout);
    }
    let failed = |what: &str, error| ServiceError::Io(format!("{what} {}", local.display()), error);
    let file = match DownloadTarget::open(local).map_err(|error| failed("write", error))? {
        DownloadTarget::Stream(mut out) => return stream(client, path, &mut out),
        DownloadTarget::File(file) => file,
    };
    let words = format!("get {path}");
    let bar = RefCell::new(None);
    let mut begin = |length| *bar.borrow_mut() = Some(Bar::new(&words, Some(length)));
    let mut tell = |done| bar.borrow().iter().for_each(|bar: &Bar| bar.at(done));
    let fetched = client.fetch(path, &file.out, &mut begin, &mut tell)?;
    file.keep().map_err(|error| failed("rename", error))?;
    // The bar ends before the line.
    drop(bar.take());
    if json {
        say!("{}", json_of_fetched(&fetched));
    }
    Ok(())
}

/// How a file was read: from which dataservers, and what was done about slow connections.
fn json_of_fetched(fetched: &Fetched) -> Value {
    json!({
        "length": fetched.length,
        "from": fetched.from,
        "connections": fetched.connections,
        "tried": fetched.tried,
        "repathed": fetched.repathed,
        "hedged": fetched.hedged,
        "repeatedBytes": fetched.repeated_bytes,
        "steered": fetched.is_steered,
        "paths": fetched.paths,
    })
}

fn stream(client: &FilesClient, path: &str, out: &mut dyn io::Write) -> Outcome {
    client.open(path, out, &mut |_| {}, &mut |_| {})?;
    Ok(())
}

fn print_entry(one: &Value, path: &str, json: bool) {
    if json {
        return say!("{one}");
    }
    let word = |name: &str| one[name].as_str().unwrap_or_default();
    let number = |name: &str| one[name].as_u64().unwrap_or_default();
    let (suffix, above) = (word("pathSuffix"), path.trim_end_matches('/'));
    let path = if suffix.is_empty() { path.to_owned() } else { format!("{above}/{suffix}") };
    let (kind, end) = match word("type") {
        "DIRECTORY" if !path.ends_with('/') => ("d", "/"),
        "DIRECTORY" => ("d", ""),
        _ => ("-", ""),
    };
    let (rights, owner) = (word("permission"), word("owner"));
    let (copies, length) = (number("replication"), number("length"));
    let (owner, path) = (printable(owner), printable(&path));
    say!("{kind}{rights:>4} {copies:>2} {owner:<10} {length:>14} {path}{end}");
}

fn fsck(report: &Value, json: bool) -> Outcome {
    let wrong = report["wrong"].as_array().map_or(&[][..], Vec::as_slice);
    if json {
        say!("{report}");
    } else {
        for one in wrong {
            let (copies, wanted) = (&one["copies"], &one["wanted"]);
            let path = printable(one["path"].as_str().unwrap_or_default());
            match one["lost"].as_object() {
                Some(lost) => say!("{path}: bytes {} to {} are lost", lost["from"], lost["to"]),
                None => say!("{path}: {copies} of {wanted} copies"),
            }
        }
        say!("{} files, {} of them not in order", report["files"], wrong.len());
        if let Some(unnamed @ 1..) = report["unnamed"].as_u64() {
            say!(
                "{unnamed} files on dataservers have no name: the nameserver's log is older than \
                 these files"
            );
        }
    }
    match wrong.len() {
        0 => Ok(()),
        count => Err(format!("files that lack copies or bytes: {count}").into()),
    }
}

/// Prints a line for each file that has a writer.
fn print_leases(report: &Value, json: bool) {
    if json {
        return say!("{report}");
    }
    let all = report["leases"].as_array().map_or(&[][..], Vec::as_slice);
    for one in all {
        let word = |name: &str| printable(one[name].as_str().unwrap_or_default());
        let end = if one["state"] == "ending" { "; it ends now" } else { "" };
        say!("{}: {}{end}", word("path"), word("words"));
    }
    say!("{} files have a writer", all.len());
}

fn print_status(report: &Value, json: bool) {
    if json {
        return say!("{report}");
    }
    say!(
        "{:<22}{:<14}{:<10}{:>8}{:>18}{:>18}",
        "dataserver",
        "name",
        "rack",
        "state",
        "bytes used",
        "bytes free"
    );
    for one in report["dataservers"].as_array().into_iter().flatten() {
        let word = |name: &str| printable(one[name].as_str().unwrap_or_default());
        let (used, free) = (one["used"].to_string(), one["free"].to_string());
        let (http, name, rack, state) = (word("http"), word("name"), word("rack"), word("state"));
        say!("{http:<22}{name:<14}{rack:<10}{state:>8}{used:>18}{free:>18}");
    }
    if report["balancing"] == true {
        say!("copies move for balance; {} have begun to move", report["balanced"]);
    }
    say!("{} files and directories", report["names"]);
    if let Some(why) = report["refused"].as_str() {
        say!("changes are refused: {why}");
    }
}
