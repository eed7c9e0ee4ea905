//! `evenfall store user`: the users of a server, and their keys.

use std::path::PathBuf;

use clap::Subcommand;
use evenfall_core::UserKey;
use evenfall_runtime::listing::printable;
use evenfall_store_server::users::UserRights;
use evenfall_store_server::users::users_file::{read_users, write_users};
use serde_json::json;

use crate::Outcome;
use crate::key::{OWNER_READS, write_new};

/// Arguments of `evenfall store user`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Add a user with a new random key to a users file, and write the key for the user. A server
    /// that runs takes the user in within a second.
    New(NewUser),
    /// List the users of a file, without their keys.
    Ls(UserList),
    /// Take a user out of a users file. A server that runs closes the user's connections within a
    /// second.
    Remove(RemovedUser),
}

/// Arguments of `evenfall store user new`.
#[derive(clap::Args, Debug)]
struct NewUser {
    /// Name of the user: letters, digits, hyphens, dots and underscores.
    name: String,
    /// The users file; a missing file is made, with mode 600.
    #[arg(long, value_name = "FILE")]
    users: PathBuf,
    /// The file of the key, for the user's machine. An existing file stays.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The user may list and read files whose names begin with this; "" for all files. This option
    /// and the next three may be repeated.
    #[arg(long, value_name = "PREFIX")]
    read: Vec<String>,
    /// The user may append to files whose names begin with this.
    #[arg(long, value_name = "PREFIX")]
    append: Vec<String>,
    /// The user may create files whose names begin with this.
    #[arg(long, value_name = "PREFIX")]
    create: Vec<String>,
    /// The user may keep copies here of files whose names begin with this, as the first node of
    /// this second node. It includes reading.
    #[arg(long, value_name = "PREFIX")]
    admin: Vec<String>,
    /// Connections of the user at once.
    #[arg(long, default_value_t = UserRights::default().connections)]
    connections: usize,
    /// The user creates no file while this many files begin with a prefix of --create.
    #[arg(long, default_value_t = UserRights::default().files)]
    files: u64,
    /// Bytes a second in both directions, over all connections of the user; 65536 at least.
    #[arg(long, value_name = "BYTES")]
    bytes_per_second: Option<u64>,
}

/// Arguments of `evenfall store user ls`.
#[derive(clap::Args, Debug)]
struct UserList {
    /// The users file.
    #[arg(long, value_name = "FILE")]
    users: PathBuf,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// Arguments of `evenfall store user remove`.
#[derive(clap::Args, Debug)]
struct RemovedUser {
    /// Name of the user.
    name: String,
    /// The users file.
    #[arg(long, value_name = "FILE")]
    users: PathBuf,
}

pub fn main(args: &Args) -> Outcome {
    match &args.command {
        Command::New(args) => add_user(args),
        Command::Ls(args) => list_users(args),
        Command::Remove(args) => remove_user(args),
    }
}

fn add_user(args: &NewUser) -> Outcome {
    let mut secret = [0; 32];
    evenfall_host::random::fill(&mut secret).map_err(|error| format!("a random key: {error}"))?;
    let key = UserKey::new(&args.name, secret)?;
    let rights = UserRights {
        read: args.read.clone(),
        append: args.append.clone(),
        create: args.create.clone(),
        admin: args.admin.clone(),
        connections: args.connections,
        files: args.files,
        bytes_per_second: args.bytes_per_second,
    };
    rights.check()?;
    let mut users = if args.users.exists() { read_users(&args.users)? } else { Vec::new() };
    if users.iter().any(|(known, _)| known.name() == key.name()) {
        let (name, shown) = (key.name(), args.users.display());
        return Err(format!("{shown} has a user {name} already: remove it first").into());
    }
    write_new(&args.out, key.to_text().as_bytes(), OWNER_READS)?;
    users.push((key, rights));
    write_users(&args.users, &users).inspect_err(|_| {
        // A key without its user would be in the way of the next try.
        let _ = std::fs::remove_file(&args.out);
    })?;
    let (out, list) = (args.out.display(), args.users.display());
    say!("{out} is written; copy it to the machine of {} alone. {list} has the user", args.name);
    Ok(())
}

fn shown_prefixes(prefixes: &[String]) -> String {
    let quoted = |prefix: &String| format!("\"{}\"", printable(prefix));
    prefixes.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn list_users(args: &UserList) -> Outcome {
    for (key, rights) in read_users(&args.users)? {
        let UserRights { read, append, create, admin, connections, files, bytes_per_second } =
            rights;
        if args.json {
            let line = json!({"name": key.name(), "read": read, "append": append,
                "create": create, "admin": admin, "connections": connections, "files": files,
                "bytes_per_second": bytes_per_second});
            say!("{line}");
            continue;
        }
        let mut line = key.name().to_owned();
        for (word, prefixes) in
            [("read", read), ("append", append), ("create", create), ("admin", admin)]
        {
            if !prefixes.is_empty() {
                line.push_str(&format!("  {word} {}", shown_prefixes(&prefixes)));
            }
        }
        say!("{line}");
    }
    Ok(())
}

fn remove_user(args: &RemovedUser) -> Outcome {
    let (list, shown) = (args.users.as_path(), args.users.display());
    let mut users = read_users(list)?;
    let before = users.len();
    users.retain(|(key, _)| key.name() != args.name);
    if users.len() == before {
        return Err(format!("{shown} has no user {}", printable(&args.name)).into());
    }
    write_users(list, &users)?;
    say!("{} is taken out of {shown}", args.name);
    Ok(())
}
