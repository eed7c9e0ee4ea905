//! An S3 server over a directory (crate `s3s-fs`), for the tests of the store: a process of its
//! own, so that they can kill it in the middle of an upload.
//!
//! `s3_server <directory> <address>`; keys are `evenfall` and `evenfall-secret`.

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let (Some(directory), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("s3_server <directory> <address>".into());
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let files = s3s_fs::FileSystem::new(directory).map_err(|error| format!("{error:?}"))?;
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single("evenfall", "evenfall-secret"));
        let service = service.build();
        let listener = tokio::net::TcpListener::bind(&address).await?;
        loop {
            let (socket, _) = listener.accept().await?;
            let service = service.clone();
            tokio::spawn(async move {
                let serving = Builder::new(TokioExecutor::new());
                let _ = serving.serve_connection(TokioIo::new(socket), service).await;
            });
        }
    })
}
