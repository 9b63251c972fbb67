package agenthost

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"time"
)

// Config configures a [Host]. The zero value is a host without files or sessions, with
// echo terminals.
type Config struct {
	// Protocol selects the protocol version. Default: [Protocol09].
	Protocol Protocol

	// Logger logs ids, methods and sizes, never message bodies or tokens. Default:
	// none.
	Logger *slog.Logger

	// Now returns the time for every timestamp on the wire. If Now and NewID are
	// deterministic, equal input causes equal output, byte for byte. Default: time.Now.
	Now func() time.Time

	// NewID creates ids. It is called with the host's lock held. Default: a random
	// UUID.
	NewID func() string

	// ReplayBuffer bounds the actions that are kept for reconnecting clients, over all
	// channels. They also have at most 8 MiB. Default: 1000.
	ReplayBuffer int

	// MaxFrame bounds a frame in each direction, in bytes. Default: 32 MiB.
	MaxFrame int

	// SendQueue bounds the bytes queued for a client, not counting the frame that is
	// being written. A client with more is disconnected. Default: 64 MiB.
	SendQueue int

	// ConnectionToken, if set, must be in the query of the WebSocket URL (?tkn=…);
	// otherwise the answer is HTTP 403. Default: not required.
	ConnectionToken string

	// Root is the directory for file: URIs. Symbolic links cannot lead outside.
	// Default: Folders, or else Files.
	Root string

	// Folders are the directories for file: URIs if Root is empty. Their names must
	// contain no symbolic links. Sessions may run only in or below Folders. Default:
	// none, and sessions may run in any folder.
	Folders []string

	// Agents are the host's agents. Package scripted has one without a model.
	Agents []Agent

	// Storage is the directory of the sessions. No other process may use it. Default:
	// none, so sessions end with the host.
	Storage string

	// NoBypass forbids modes in which agents do not ask for permission.
	NoBypass bool

	// Files are served read-only if Root and Folders are empty: content by absolute
	// slash-separated path. Default: none.
	Files map[string]string

	// Writable permits clients to write and delete below Root or Folders.
	Writable bool

	// Terminals selects the kind of terminal. Default: [EchoTerminals].
	Terminals TerminalMode

	// Canvases are offered to the agent in every session. Default: none.
	Canvases []Canvas

	// MCP lists the MCP servers of every session. They start with the first connection.
	// Default: none.
	MCP []MCPServer

	// ConnectMCP, required with MCP, starts an MCP server and returns the connection to
	// it. The host closes the connection and then calls stop, which returns when the
	// server has ended.
	ConnectMCP func(ctx context.Context, server *MCPServer) (conn MCPConn, stop func(), err error)

	// Resources are the agent's protected resources. Default: none.
	Resources []Resource

	// Meta is _meta in the result of initialize. Default: none.
	Meta json.RawMessage

	// Recorder, if set, is called with each received frame before it is handled, and with
	// each frame to send before it is written. Calls may overlap. Recorder must not block
	// or change the frame; it may keep the frame.
	Recorder func(Frame)
}

// A Frame is one message on the wire.
type Frame struct {
	Conn     int64 // the connection's number, from 1
	Received bool  // false: sent by the host
	Data     []byte
}

// A TerminalMode is a kind of terminal.
type TerminalMode string

const (
	// EchoTerminals echo each line and understand `exit`. They are deterministic, and
	// safe with untrusted clients.
	EchoTerminals TerminalMode = "echo"

	// ShellTerminals run /bin/sh on a pseudo-terminal with the rights of the host
	// process. Every client thus gets these rights.
	ShellTerminals TerminalMode = "shell"
)

// Defaults and limits.
const (
	defaultReplayBuffer = 1000
	defaultMaxFrame     = 32 << 20
	defaultSendQueue    = 64 << 20

	maxSessions      = 1000    // at once
	maxTerminals     = 64      // at once
	maxClients       = 1000    // records of absent clients
	maxDeleted       = 10_000  // sessions remembered as deleted
	maxInFlight      = 64      // requests of a connection that run in goroutines
	maxTerminalBytes = 1 << 20 // of one terminal's content

	// maxReplayBytes bounds the actions that are kept for reconnecting clients. They are in one answer, and a relay
	// with little memory passes answers of 14 MiB.
	maxReplayBytes = 8 << 20
)

// withDefaults returns a validated copy of the configuration with defaults.
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
	c.Protocol = cmp.Or(c.Protocol, Protocol09)
	c.Terminals = cmp.Or(c.Terminals, EchoTerminals)
	if len(c.MCP) > 0 && c.ConnectMCP == nil {
		return c, errors.New("agenthost: Config.MCP needs Config.ConnectMCP")
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
			return c, fmt.Errorf("agenthost: Config.%s is %d; want 0 for the default, or more", field.name, *field.value)
		}
		if *field.value == 0 {
			*field.value = field.fallback
		}
	}
	return c, c.check()
}

// check returns an error for the first invalid field. Each field has its own branch
// and text.
func (c Config) check() error {
	switch {
	case dialects[c.Protocol].own == nil:
		return fmt.Errorf("agenthost: Config.Protocol is %q; want 0.8, 0.9, 0.10, 1.0 or 1.1", c.Protocol)
	case c.Terminals != EchoTerminals && c.Terminals != ShellTerminals:
		return fmt.Errorf("agenthost: Config.Terminals is %q; want %q or %q", c.Terminals, EchoTerminals, ShellTerminals)
	case c.Root != "" && len(c.Files) > 0:
		return errors.New("agenthost: Config.Root and Config.Files are both set; want one")
	case c.Writable && len(c.directories()) == 0:
		return errors.New("agenthost: Config.Writable without Config.Root or Folders")
	case c.Root != "" && !filepath.IsAbs(c.Root):
		return fmt.Errorf("agenthost: Config.Root is %q; want an absolute path", c.Root)
	}
	for _, folder := range c.Folders {
		if !filepath.IsAbs(folder) || c.Root != "" || len(c.Files) > 0 {
			return fmt.Errorf("agenthost: Config.Folders has %q; want absolute paths, and neither Root nor Files", folder)
		}
	}
	for name := range c.Files {
		if name == "/" || name != filepath.ToSlash(filepath.Clean(name)) || name[0] != '/' {
			return fmt.Errorf("agenthost: Config.Files has %q; want clean absolute paths", name)
		}
	}
	return c.checkAgents()
}

// checkAgents returns an error unless the agents' providers are distinct URI schemes.
func (c Config) checkAgents() error {
	names := map[string]bool{}
	for _, a := range c.Agents {
		name := a.Info().Provider
		if !providerPattern.MatchString(name) || names[name] {
			return fmt.Errorf("agenthost: Config.Agents has the provider %q; want different URI schemes in lower case", name)
		}
		names[name] = true
	}
	return nil
}

// directories returns the directories that the host serves. There are none if the files
// are in memory.
func (c Config) directories() []string {
	if c.Root != "" {
		return []string{c.Root}
	}
	return c.Folders
}

// providerPattern matches a provider's name: a URI scheme in lower case.
var providerPattern = regexp.MustCompile(`^[a-z][a-z0-9.-]{0,62}$`)

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
