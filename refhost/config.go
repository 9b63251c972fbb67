package refhost

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"
)

// Config is what a [Host] can be told. The zero value is a host without files,
// with echo terminals and without ready-made sessions.
type Config struct {
	// Protocol is what the host speaks. Default: [Protocol09].
	Protocol Protocol

	// Logger gets ids, methods and sizes, never message bodies or tokens.
	// Default: none.
	Logger *slog.Logger

	// Now is the clock of every timestamp on the wire. With the default of
	// NewID replaced too, the same input gives the same bytes. Default:
	// time.Now.
	Now func() time.Time

	// NewID makes the ids of what the host creates by itself. It is called
	// with the host's lock held. Default: a random UUID.
	NewID func() string

	// ReplayBuffer is how many action envelopes, over all channels, a
	// reconnecting client can be replayed. Default: 1000.
	ReplayBuffer int

	// MaxFrame is the size limit of a frame, in bytes, both ways. Default:
	// 32 MiB.
	MaxFrame int

	// SendQueue is how many bytes may wait behind the frame that is being
	// written to a client, before that client is cut. Default: 64 MiB.
	SendQueue int

	// ConnectionToken, if set, must stand in the query of the WebSocket's URL
	// (?tkn=…), else the answer is HTTP 403. Default: everybody may connect.
	ConnectionToken string

	// Root is the directory that file: URIs may reach, and nothing outside of
	// it, symbolic links included. Default: see Files.
	Root string

	// Files are served, read-only, where Root is empty: content by absolute
	// slash-separated path. Default: none, or a few with Demo.
	Files map[string]string

	// Writable lets clients write and delete below Root.
	Writable bool

	// Terminals says what stands behind a terminal. Default: [EchoTerminals].
	Terminals TerminalMode

	// Canvases are those that the agent can open in every session. Default:
	// none, or two with Demo.
	Canvases []Canvas

	// MCP are the MCP servers of every session. They are started with the
	// first connection. Default: none, or one with Demo.
	MCP []MCPServer

	// Resources are what the agent needs tokens for. Default: none.
	Resources []Resource

	// Meta is _meta in the answer to initialize. Default: none.
	Meta json.RawMessage

	// Demo makes three sessions with a past, in one of which a slow turn is
	// always going on. It begins with the first connection.
	Demo bool

	// Still has the demo's live session say nothing by itself.
	Still bool

	// Recorder, if set, is called with every frame received, before it is
	// handled, and every frame to send, before it is written. Calls for
	// different connections overlap. It must neither block nor change the
	// frame, and may keep it.
	Recorder func(Frame)
}

// A Frame is one message as it crossed the wire.
type Frame struct {
	Conn     int64 // the connection's number on this host, from 1
	Received bool  // false: sent by the host
	Data     []byte
}

// A TerminalMode is what stands behind a host's terminals.
type TerminalMode string

const (
	// EchoTerminals answer each line with itself and know `exit`. They are
	// deterministic, and safe where strangers may connect.
	EchoTerminals TerminalMode = "echo"

	// ShellTerminals run /bin/sh on a pseudo-terminal, as the user that runs
	// the host: whoever can connect can do all that this user can.
	ShellTerminals TerminalMode = "shell"
)

// Defaults and limits.
const (
	defaultReplayBuffer = 1000
	defaultMaxFrame     = 32 << 20
	defaultSendQueue    = 64 << 20

	maxSessions      = 1000    // at once
	maxTerminals     = 64      // at once
	maxClients       = 1000    // records of clients that have gone
	maxDeleted       = 10_000  // sessions remembered as deleted
	maxInFlight      = 64      // requests of one connection that wait for another client
	maxTerminalBytes = 1 << 20 // of one terminal's content
)

// withDefaults returns a checked copy in which nothing is left open.
func (c Config) withDefaults() (Config, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.NewID == nil {
		c.NewID = newUUID
	}
	if c.Protocol == "" {
		c.Protocol = Protocol09
	}
	if c.Terminals == "" {
		c.Terminals = EchoTerminals
	}
	if c.Demo && c.Root == "" && c.Files == nil {
		c.Files = demoFiles
	}
	if c.Demo && c.Canvases == nil {
		c.Canvases = demoCanvases
	}
	if c.Demo && c.MCP == nil {
		c.MCP = demoMCP
	}
	var err error
	if c.MCP, err = checkMCP(c.MCP); err != nil {
		return c, err
	}
	if c.Canvases, err = checkCanvases(c.Canvases); err != nil {
		return c, err
	}
	for _, field := range []struct {
		name     string
		value    *int
		fallback int
	}{
		{"ReplayBuffer", &c.ReplayBuffer, defaultReplayBuffer},
		{"MaxFrame", &c.MaxFrame, defaultMaxFrame},
		{"SendQueue", &c.SendQueue, defaultSendQueue},
	} {
		if *field.value < 0 {
			return c, fmt.Errorf("refhost: Config.%s is %d; want 0 for the default, or more", field.name, *field.value)
		}
		if *field.value == 0 {
			*field.value = field.fallback
		}
	}
	return c, c.check()
}

func (c Config) check() error {
	switch {
	case dialects[c.Protocol].own == nil:
		return fmt.Errorf("refhost: Config.Protocol is %q; want 0.8, 0.9, 0.10, 1.0 or 1.1", c.Protocol)
	case c.Terminals != EchoTerminals && c.Terminals != ShellTerminals:
		return fmt.Errorf("refhost: Config.Terminals is %q; want %q or %q", c.Terminals, EchoTerminals, ShellTerminals)
	case c.Root != "" && len(c.Files) > 0:
		return errors.New("refhost: Config.Root and Config.Files are both set; want one")
	case c.Root == "" && c.Writable:
		return errors.New("refhost: Config.Writable without Config.Root")
	case c.Root != "" && !filepath.IsAbs(c.Root):
		return fmt.Errorf("refhost: Config.Root is %q; want an absolute path", c.Root)
	}
	for name := range c.Files {
		if name == "/" || name != filepath.ToSlash(filepath.Clean(name)) || name[0] != '/' {
			return fmt.Errorf("refhost: Config.Files has %q; want clean absolute paths", name)
		}
	}
	return nil
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
