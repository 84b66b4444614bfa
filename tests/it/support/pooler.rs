//! A pooler in transaction mode before the Postgres of the tests, as `PgBouncer` is one since 1.21: a few sessions for many
//! clients, and a client has a session only from the first statement of a transaction to its end. Each transaction
//! gets the session that was unused for longest, so what a client leaves in a session is soon another's. Statements that
//! a client has prepared are prepared in each session where it executes them, once for all clients with the same text.

use std::{
    collections::{HashMap, VecDeque},
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use domain::secret::Secret;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpListener, TcpStream, UnixStream, tcp::OwnedWriteHalf as ClientWriter,
        unix::OwnedWriteHalf as SessionWriter,
    },
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
};
use url::Url;

/// Fewer than a process of the tests opens connections.
const SESSIONS: usize = 2;
/// What `PgBouncer` takes at the start of a connection; it refuses any other parameter.
const PARAMETERS: [&str; 6] = [
    "user",
    "database",
    "application_name",
    "client_encoding",
    "DateStyle",
    "TimeZone",
];
const VERSION_3: u32 = 196_608;
/// What begins a statement that changes or uses the session beyond its transaction.
const OF_A_SESSION: [&str; 9] = [
    "listen",
    "unlisten",
    "set",
    "reset",
    "prepare",
    "declare",
    "create temp",
    "select pg_advisory",
    "load",
];

/// A pooler at work, until it is dropped with the runtime that it was started on.
pub struct Pooler {
    /// Where clients find it.
    pub url: Secret,
    shared: Arc<Shared>,
}

struct Shared {
    socket: PathBuf,
    user: String,
    database: String,
    places: Arc<Semaphore>,
    idle: Mutex<VecDeque<Session>>,
    /// How often all connections were cut.
    cuts: watch::Sender<usize>,
    clients: AtomicUsize,
    statements: AtomicUsize,
    misuse: Mutex<Vec<String>>,
}

struct Message {
    kind: u8,
    body: Vec<u8>,
}

/// What a session has still to answer, in order.
enum Owed {
    /// The preparation of a statement of a client.
    Parse {
        statement: Statement,
        is_asked: bool,
    },
    Ready,
}

/// A prepared statement: its text and the types of its parameters, as they come in a message.
type Statement = Vec<u8>;

/// One connection to Postgres.
struct Session {
    reader: mpsc::Receiver<Message>,
    writer: SessionWriter,
    owed: VecDeque<Owed>,
    /// The statements that are prepared here, each with its name here.
    prepared: HashMap<Statement, Vec<u8>>,
    names: usize,
    is_in_transaction: bool,
    parameters: Vec<Message>,
    cuts: usize,
}

impl Pooler {
    /// Starts one before this database.
    pub fn start(database: &Secret) -> Self {
        Self::with_sessions(database, SESSIONS)
    }

    /// The same with so many sessions at most.
    pub fn with_sessions(database: &Secret, sessions: usize) -> Self {
        let mut url = Url::parse(database.expose()).unwrap();
        let mut query = url.query_pairs();
        let host = query.find(|(name, _)| name == "host");
        let (_, host) = host.expect("the pooler of the tests needs a Postgres at a Unix socket");
        let socket = PathBuf::from(&*host).join(".s.PGSQL.5432");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let shared = Arc::new(Shared {
            socket,
            user: url.username().to_owned(),
            database: url.path().trim_start_matches('/').to_owned(),
            places: Arc::new(Semaphore::new(sessions)),
            idle: Mutex::default(),
            cuts: watch::channel(0).0,
            clients: AtomicUsize::new(0),
            statements: AtomicUsize::new(0),
            misuse: Mutex::default(),
        });
        url.set_query(Some("sslmode=disable"));
        url.set_host(Some("127.0.0.1")).unwrap();
        let port = listener.local_addr().unwrap().port();
        url.set_port(Some(port)).unwrap();
        tokio::spawn(accept(listener, shared.clone()));
        Self {
            url: Secret::new(url.as_str()),
            shared,
        }
    }

    /// Closes all connections, as a restart does.
    pub fn restart(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
        self.shared.idle.lock().unwrap().clear();
    }

    /// Clients that have come so far.
    pub fn clients(&self) -> usize {
        self.shared.clients.load(Ordering::Relaxed)
    }

    /// Statements that clients have executed so far.
    pub fn statements(&self) -> usize {
        self.shared.statements.load(Ordering::Relaxed)
    }

    /// Statements that would have left something in a session, or relied on it.
    pub fn misuse(&self) -> Vec<String> {
        self.shared.misuse.lock().unwrap().clone()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let mut cuts = shared.cuts.subscribe();
            cuts.borrow_and_update();
            tokio::select! {
                _ = shared.serve(client) => {}
                _ = cuts.changed() => {}
            }
        });
    }
}

impl Shared {
    async fn serve(&self, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        self.clients.fetch_add(1, Ordering::Relaxed);
        let (reader, mut writer) = client.into_split();
        let mut reader = BufReader::new(reader);
        if let Err(unknown) = start_of_client(&mut reader, &mut writer).await? {
            let text = format!("unsupported startup parameter: {unknown}");
            let fields = format!("SFATAL\0VFATAL\0C08P01\0M{text}\0\0");
            return write(&mut writer, b'E', fields.as_bytes()).await;
        }
        let (session, place) = self.session().await?;
        write(&mut writer, b'R', &0_u32.to_be_bytes()).await?;
        for Message { kind, body } in &session.parameters {
            write(&mut writer, *kind, body).await?;
        }
        write(&mut writer, b'K', &[0; 8]).await?;
        write(&mut writer, b'Z', b"I").await?;
        self.give_back(session, place);
        let mut messages = read_messages(reader);
        let mut client = Client {
            writer,
            statements: HashMap::new(),
        };
        while let Some(first) = messages.recv().await.filter(|first| first.kind != b'X') {
            let (mut session, place) = self.session().await?;
            // The session of a client that went away in a transaction is closed, too.
            self.transact(&mut client, first, &mut messages, &mut session)
                .await?;
            self.give_back(session, place);
        }
        Ok(())
    }

    /// Passes messages on until the session is in no transaction and owes no answer.
    async fn transact(
        &self,
        client: &mut Client,
        first: Message,
        messages: &mut mpsc::Receiver<Message>,
        session: &mut Session,
    ) -> io::Result<()> {
        self.pass_on(client, first, session).await?;
        loop {
            tokio::select! {
                message = messages.recv() => {
                    self.pass_on(client, message.ok_or_else(gone)?, session).await?;
                }
                answer = session.reader.recv() => {
                    let answer = answer.ok_or_else(gone)?;
                    if session.take(&answer) {
                        write(&mut client.writer, answer.kind, &answer.body).await?;
                    }
                    let is_ready = answer.kind == b'Z' && session.owed.is_empty();
                    if is_ready && !session.is_in_transaction {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn pass_on(
        &self,
        client: &mut Client,
        mut message: Message,
        session: &mut Session,
    ) -> io::Result<()> {
        self.note_misuse(&message, session);
        if matches!(message.kind, b'Q' | b'E') {
            self.statements.fetch_add(1, Ordering::Relaxed);
        }
        match message.kind {
            b'X' => return Err(gone()),
            b'P' if message.body[0] != 0 => {
                let (name, rest) = split_text(&message.body);
                client.statements.insert(name.to_vec(), rest.to_vec());
                return session.prepare(rest, true).await;
            }
            b'B' => {
                let (portal, rest) = split_text(&message.body);
                let (name, rest) = split_text(rest);
                if !name.is_empty() {
                    let here = session.prepared_name(client, name).await?;
                    message.body = [portal, b"\0", &here, b"\0", rest].concat();
                }
            }
            b'D' | b'C' if message.body[0] == b'S' && message.body[1] != 0 => {
                let (name, _) = split_text(&message.body[1..]);
                let here = session.prepared_name(client, name).await?;
                if message.kind == b'C' {
                    let text = client.statements.remove(name);
                    session.prepared.remove(&text.unwrap_or_default());
                }
                message.body = [b"S", &*here, b"\0"].concat();
            }
            b'Q' | b'S' => session.owed.push_back(Owed::Ready),
            _ => {}
        }
        write(&mut session.writer, message.kind, &message.body).await
    }

    fn note_misuse(&self, message: &Message, session: &Session) {
        let sql = match message.kind {
            b'Q' => &message.body[..],
            b'P' => split_text(&message.body).1,
            _ => return,
        };
        let sql = String::from_utf8_lossy(split_text(sql).0).into_owned();
        let begins = |words: &&str| sql.trim_start().to_lowercase().starts_with(*words);
        if !session.is_in_transaction && OF_A_SESSION.iter().any(begins) {
            self.misuse.lock().unwrap().push(sql);
        }
    }

    /// A session for a transaction: a new one while there are fewer than there may be.
    async fn session(&self) -> io::Result<(Session, OwnedSemaphorePermit)> {
        let place = self.places.clone().acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        let idle = {
            let mut idle = self.idle.lock().unwrap();
            if idle.len() > self.places.available_permits() {
                idle.pop_front()
            } else {
                None
            }
        };
        match idle {
            Some(session) => Ok((session, place)),
            None => Ok((self.open().await?, place)),
        }
    }

    fn give_back(&self, session: Session, place: OwnedSemaphorePermit) {
        if session.cuts == *self.cuts.borrow() {
            self.idle.lock().unwrap().push_back(session);
        }
        drop(place);
    }

    async fn open(&self) -> io::Result<Session> {
        let cuts = *self.cuts.borrow();
        let (reader, mut writer) = UnixStream::connect(&self.socket).await?.into_split();
        let Self { user, database, .. } = self;
        let parameters = format!("user\0{user}\0database\0{database}\0\0");
        let length = u32::try_from(parameters.len()).unwrap() + 8;
        writer.write_u32(length).await?;
        writer.write_u32(VERSION_3).await?;
        writer.write_all(parameters.as_bytes()).await?;
        let mut reader = read_messages(BufReader::new(reader));
        let mut parameters = Vec::new();
        loop {
            let message = reader.recv().await.ok_or_else(gone)?;
            match message.kind {
                b'S' => parameters.push(message),
                b'R' => assert_eq!(message.body, [0; 4], "Postgres wants a password"),
                b'E' => return Err(gone()),
                b'Z' => break,
                _ => {}
            }
        }
        Ok(Session {
            reader,
            writer,
            owed: VecDeque::new(),
            prepared: HashMap::new(),
            names: 0,
            is_in_transaction: false,
            parameters,
            cuts,
        })
    }
}

struct Client {
    writer: ClientWriter,
    /// The statements that it has prepared: the text and the types of each.
    statements: HashMap<Vec<u8>, Vec<u8>>,
}

impl Session {
    /// Prepares a statement. One that is prepared here is prepared once more without a name, which leaves nothing behind
    /// and has Postgres answer in its turn.
    async fn prepare(&mut self, text: &[u8], is_asked: bool) -> io::Result<()> {
        let mut name = Vec::new();
        if !self.prepared.contains_key(text) {
            self.names += 1;
            name = format!("pooled_{}", self.names).into_bytes();
            self.prepared.insert(text.to_vec(), name.clone());
        }
        let body = [&name, &b"\0"[..], text].concat();
        self.owed.push_back(Owed::Parse {
            statement: text.to_vec(),
            is_asked,
        });
        write(&mut self.writer, b'P', &body).await
    }

    /// The name here of a statement of a client, which is prepared if it is not.
    async fn prepared_name(&mut self, client: &Client, name: &[u8]) -> io::Result<Vec<u8>> {
        let Some(text) = client.statements.get(name) else {
            return Ok(Vec::new());
        };
        if !self.prepared.contains_key(text) {
            self.prepare(text, false).await?;
        }
        Ok(self.prepared[text].clone())
    }

    /// Notes what an answer says. Returns whether it is for the client.
    fn take(&mut self, answer: &Message) -> bool {
        match answer.kind {
            b'1' => !matches!(
                self.owed.pop_front(),
                Some(Owed::Parse {
                    is_asked: false,
                    ..
                })
            ),
            b'Z' => {
                // After an error the rest is left out, up to here.
                while let Some(Owed::Parse { statement, .. }) = self.owed.pop_front() {
                    self.prepared.remove(&statement);
                }
                self.is_in_transaction = answer.body != b"I";
                true
            }
            _ => true,
        }
    }
}

/// Answers a client until it has sent its parameters. `Err` names one that is not known.
async fn start_of_client(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut ClientWriter,
) -> io::Result<Result<(), String>> {
    loop {
        let length = reader.read_u32().await?;
        let mut body = vec![0; usize::try_from(length).unwrap().saturating_sub(4)];
        reader.read_exact(&mut body).await?;
        let version = u32::from_be_bytes(body[..4].try_into().unwrap());
        if version != VERSION_3 {
            // It asks for encryption.
            writer.write_all(b"N").await?;
            continue;
        }
        let text = String::from_utf8_lossy(&body[4..]).into_owned();
        let names = text.split('\0').step_by(2).filter(|name| !name.is_empty());
        let mut unknown = names.filter(|name| !PARAMETERS.contains(name));
        return Ok(match unknown.next() {
            Some(name) => Err(name.to_owned()),
            None => Ok(()),
        });
    }
}

/// The messages of one end, read in a task of its own.
fn read_messages(mut reader: impl AsyncRead + Unpin + Send + 'static) -> mpsc::Receiver<Message> {
    let (sender, receiver) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok(kind) = reader.read_u8().await {
            let Ok(length) = reader.read_u32().await else {
                return;
            };
            let mut body = vec![0; usize::try_from(length).unwrap().saturating_sub(4)];
            let read = reader.read_exact(&mut body).await;
            if read.is_err() || sender.send(Message { kind, body }).await.is_err() {
                return;
            }
        }
    });
    receiver
}

async fn write(writer: &mut (impl AsyncWriteExt + Unpin), kind: u8, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).unwrap() + 4;
    let message = [&[kind], &length.to_be_bytes()[..], body].concat();
    writer.write_all(&message).await
}

/// The text before the first NUL, and what follows that.
fn split_text(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap();
    (&bytes[..end], &bytes[end + 1..])
}

fn gone() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}
