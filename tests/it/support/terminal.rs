//! `chatelaine chat`, or any other command, in a process of its own, at a terminal or between two pipes.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    process::Stdio,
};

use nix::pty::{Winsize, openpty};
use tokio::{
    process::{Child, Command},
    sync::watch,
};

use super::{client::Client, program::chatelaine, world::TIME_LIMIT};

fn chat(url: &str, person: &Client, more: &[&str]) -> Command {
    let mut command = chatelaine(&["chat", "--agent", "bank", "--url", url]);
    command
        .args(more)
        .env("CHATELAINE_CHAT_HISTORY", "/dev/null")
        .env("TZ", "UTC-1")
        .env("CHATELAINE_TOKEN", person.token());
    command
}

/// Somebody who chats. Killed with this value.
pub struct Terminal {
    process: Child,
    input: Option<File>,
    shown: watch::Receiver<Vec<u8>>,
    /// How much of it was looked at.
    at: usize,
    /// What ends a line, and what ends the input.
    keys: Option<(&'static str, &'static str)>,
}

impl Terminal {
    /// Lines in and lines out, as a script sees them.
    pub fn piped(url: &str, person: &Client) -> Self {
        Self::piped_with(url, person, &[])
    }

    /// The same, with more on the command line.
    pub fn piped_with(url: &str, person: &Client, more: &[&str]) -> Self {
        let (stdin, input) = std::io::pipe().unwrap();
        let (output, stdout) = std::io::pipe().unwrap();
        Self::start(
            [stdin.into(), stdout.into()],
            input.into(),
            output.into(),
            (chat(url, person, more), None),
        )
    }

    /// A pseudo-terminal, where a person would type.
    pub fn real(url: &str, person: &Client) -> Self {
        Self::real_with(url, person, 160, &[])
    }

    /// The same, with so many columns and more on the command line.
    pub fn real_with(url: &str, person: &Client, columns: u16, more: &[&str]) -> Self {
        Self::of(chat(url, person, more), columns)
    }

    /// Any command at a pseudo-terminal with so many columns.
    pub fn of(command: Command, columns: u16) -> Self {
        let size = Winsize {
            ws_row: 50,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&size), None).unwrap();
        let ends = [pty.slave.try_clone().unwrap(), pty.slave];
        Self::start(
            ends,
            pty.master.try_clone().unwrap(),
            pty.master,
            (command, Some(("\r", "\u{4}"))),
        )
    }

    fn start(
        [stdin, stdout]: [OwnedFd; 2],
        input: OwnedFd,
        output: OwnedFd,
        (mut command, keys): (Command, Option<(&'static str, &'static str)>),
    ) -> Self {
        command.stdin(stdin).stdout(stdout).stderr(Stdio::inherit());
        let process = command.spawn().unwrap();
        // Its ends are closed here, so that the output ends with the process.
        drop(command);
        let (said, shown) = watch::channel(Vec::new());
        // A terminal whose other end is closed is an error and the end.
        std::thread::spawn(move || {
            let (mut output, mut piece) = (File::from(output), [0; 4096]);
            while let Ok(read @ 1..) = output.read(&mut piece) {
                said.send_modify(|said| said.extend_from_slice(&piece[..read]));
            }
        });
        Self {
            process,
            input: Some(input.into()),
            shown,
            at: 0,
            keys,
        }
    }

    pub fn types(&mut self, text: &str) {
        self.input
            .as_mut()
            .expect("it has not ended")
            .write_all(text.as_bytes())
            .unwrap();
    }

    /// What a terminal does at Ctrl-C while no line is being read.
    pub fn interrupt(&self) {
        let id = self.process.id().expect("it has not ended");
        let id = nix::unistd::Pid::from_raw(i32::try_from(id).unwrap());
        nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT).unwrap();
    }

    pub fn enters(&mut self, line: &str) {
        let end = self.keys.map_or("\n", |(line, _)| line);
        self.types(&format!("{line}{end}"));
    }

    /// Waits until this is shown, after everything that was waited for before.
    #[track_caller]
    pub fn shows(&mut self, text: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let end = |shown: &[u8]| {
                let found = shown
                    .windows(text.len())
                    .position(|window| window == text.as_bytes());
                found.map(|found| found + text.len())
            };
            let at = self.at;
            let found = tokio::time::timeout(
                TIME_LIMIT,
                self.shown.wait_for(|shown| end(&shown[at..]).is_some()),
            );
            let found = found
                .await
                .ok()
                .and_then(Result::ok)
                .and_then(|shown| end(&shown[at..]));
            let Some(found) = found else {
                panic!("{caller}: {text:?} is not shown: {}", self.all())
            };
            self.at += found;
        }
    }

    /// Everything it has shown.
    pub fn all(&self) -> String {
        String::from_utf8_lossy(&self.shown.borrow()).into_owned()
    }

    /// Nothing more is typed; everything it has shown until it left, which it did well.
    pub async fn ends(mut self) -> String {
        if let Some((_, end)) = self.keys {
            self.types(end);
        } else {
            self.input = None;
        }
        self.left().await
    }

    /// Waits until it leaves by itself.
    pub async fn left(self) -> String {
        let (shown, is_success) = self.result().await;
        assert!(is_success, "{shown}");
        shown
    }

    /// Nothing more is typed; everything it has shown, and whether it left as it should.
    pub async fn ends_with(mut self) -> (String, bool) {
        self.input = None;
        self.result().await
    }

    async fn result(mut self) -> (String, bool) {
        let status = tokio::time::timeout(TIME_LIMIT, self.process.wait()).await;
        let status = status
            .unwrap_or_else(|_| panic!("it does not end: {}", self.all()))
            .unwrap();
        // The reader ends with the output.
        let _ = tokio::time::timeout(TIME_LIMIT, self.shown.wait_for(|_| false)).await;
        (self.all(), status.success())
    }
}
