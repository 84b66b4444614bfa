//! What lies between the replicas and Postgres: a TCP proxy that cuts all connections, or lets nothing pass for a while.

use std::{convert::Infallible, path::PathBuf, sync::Arc, time::Duration};

use domain::secret::Secret;
use sqlx::postgres::PgConnectOptions;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
};

/// How the proxy is at the moment.
#[derive(Clone, Copy, Default)]
struct Link {
    /// One higher with each cut; a connection of an older number ends.
    cuts: usize,
    stalled: bool,
}

/// What is behind the proxy.
#[derive(Clone)]
enum Behind {
    Socket(PathBuf),
    Address(String),
}

#[derive(Clone)]
pub struct DatabaseLink {
    /// What a replica takes for the database.
    pub url: Secret,
    link: Arc<watch::Sender<Link>>,
}

impl DatabaseLink {
    /// In front of a database that listens on a Unix socket, or of a pooler, which listens at an address.
    pub async fn start(database: &Secret) -> Self {
        let options: PgConnectOptions = database.expose().parse().unwrap();
        let port = options.get_port();
        let behind = match options.get_socket() {
            Some(folder) => Behind::Socket(folder.join(format!(".s.PGSQL.{port}"))),
            None => Behind::Address(format!("{}:{port}", options.get_host())),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "postgres://{}@{}/{}?sslmode=disable",
            options.get_username(),
            listener.local_addr().unwrap(),
            options.get_database().expect("the URL names the database"),
        );
        let link = Arc::new(watch::Sender::new(Link::default()));
        tokio::spawn(serve(listener, behind, Arc::clone(&link)));
        Self {
            url: Secret::new(url),
            link,
        }
    }

    /// Ends every connection, whatever is under way on it.
    pub fn cut(&self) {
        self.link.send_modify(|link| link.cuts += 1);
    }

    /// Lets nothing pass for a time.
    pub async fn stall(&self, time: Duration) {
        self.link.send_modify(|link| link.stalled = true);
        tokio::time::sleep(time).await;
        self.link.send_modify(|link| link.stalled = false);
    }
}

async fn serve(
    listener: TcpListener,
    behind: Behind,
    link: Arc<watch::Sender<Link>>,
) -> Infallible {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let (behind, link) = (behind.clone(), link.subscribe());
        tokio::spawn(async move {
            // What is behind may be down, and then the client's connection ends.
            match behind {
                Behind::Socket(socket) => {
                    if let Ok(server) = UnixStream::connect(socket).await {
                        carry(client, server, link).await;
                    }
                }
                Behind::Address(address) => {
                    if let Ok(server) = TcpStream::connect(address).await {
                        let _ = server.set_nodelay(true);
                        carry(client, server, link).await;
                    }
                }
            }
        });
    }
}

async fn carry(
    client: TcpStream,
    server: impl AsyncRead + AsyncWrite,
    link: watch::Receiver<Link>,
) {
    let _ = client.set_nodelay(true);
    let cuts = link.borrow().cuts;
    let mut cut = link.clone();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = split(server);
    tokio::select! {
        () = pump(from_client, to_server, link.clone()) => {}
        () = pump(from_server, to_client, link) => {}
        _ = cut.wait_for(|link| link.cuts > cuts) => {}
    }
}

/// Carries bytes until one side ends.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut link: watch::Receiver<Link>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let goes_on = link.wait_for(|link| !link.stalled).await.is_ok();
        if !goes_on || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
