package connect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/device"
	"ahprelay/internal/atomicfile"
	"ahprelay/internal/clock"
)

// A Home is the directory with a person's sign-ins, pairings and local tokens.
type Home struct {
	Dir  string
	Keys KeyStore // nil: device keys are stored in files
}

// A KeyStore stores secrets outside of files.
type KeyStore interface {
	Set(name, secret string) error
	Get(name string) (string, error)
	Delete(name string) error
}

// A signIn is the content of a sign-in's file when the keys are in the key store.
type signIn struct {
	Relay string `json:"relay"`
	InKey bool   `json:"inKeyStore"`
}

// ErrNotSignedIn reports that there is no sign-in.
var ErrNotSignedIn = errors.New("not signed in at any relay: run ahp-connect login https://relay.example.com")

// signIns returns the directory with a file for each relay.
func (h *Home) signIns() string { return filepath.Join(h.Dir, "relays") }

// RelayName returns a relay's name in addresses: its host name, and the port if the URL
// has one.
func RelayName(base string) string {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return ""
	}
	return strings.NewReplacer(":", "-", "[", "", "]", "").Replace(strings.ToLower(u.Host))
}

func (h *Home) file(relay string) string {
	return filepath.Join(h.signIns(), RelayName(relay)+".json")
}

// Writable creates the directory, and returns an error if sign-ins cannot be stored. A login asks before, because a link works once.
func (h *Home) Writable() error {
	err := os.MkdirAll(h.signIns(), 0o700)
	if err == nil {
		var probe *os.File
		if probe, err = os.CreateTemp(h.signIns(), ".probe-"); err == nil {
			err = errors.Join(probe.Close(), os.Remove(probe.Name()))
		}
	}
	if err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	return nil
}

// Save stores a sign-in. It reports whether the key is in the key store; if the key
// store has failed, why is the reason.
func (h *Home) Save(d *device.Device) (inStore bool, why error, err error) {
	if err := os.MkdirAll(h.signIns(), 0o700); err != nil {
		return false, nil, err
	}
	data, err := d.Encode()
	if err != nil {
		return false, nil, err
	}
	path := h.file(d.Relay)
	if h.Keys != nil {
		if why = h.Keys.Set(d.Relay, string(data)); why == nil {
			return true, nil, atomicfile.ReplaceJSON(path, signIn{d.Relay, true}, "")
		}
	}
	return false, why, atomicfile.Replace(path, data, 0o600)
}

// Devices returns all sign-ins, in the order of their relays' names.
func (h *Home) Devices() (list []*device.Device, err error) {
	entries, err := os.ReadDir(h.signIns())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		d, err := h.open(filepath.Join(h.signIns(), e.Name()))
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

func (h *Home) open(path string) (*device.Device, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s signIn
	if json.Unmarshal(data, &s) != nil || !s.InKey {
		return device.Open(path)
	}
	if h.Keys == nil {
		return nil, fmt.Errorf("the key for %s is in the key store, which --key-file excludes: sign in again with --key-file", s.Relay)
	}
	secret, err := h.Keys.Get(s.Relay)
	if err != nil {
		return nil, fmt.Errorf("the key store does not give the key for %s (%w): unlock it, or sign in again with ahp-connect login --key-file", s.Relay, err)
	}
	return device.Decode([]byte(secret))
}

// Device returns the sign-in at a relay, given by URL or name. If relay is "", it
// returns the only sign-in.
func (h *Home) Device(relay string) (*device.Device, error) {
	list, err := h.Devices()
	switch {
	case err != nil:
		return nil, err
	case len(list) == 0:
		return nil, ErrNotSignedIn
	case relay == "" && len(list) == 1:
		return list[0], nil
	}
	var names []string
	for _, d := range list {
		name := RelayName(d.Relay)
		if relay != "" && (relay == name || strings.TrimRight(relay, "/") == d.Relay) {
			return d, nil
		}
		names = append(names, name)
	}
	if relay == "" {
		return nil, fmt.Errorf("signed in at several relays: choose one with --at (%s)", strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("not signed in at %s: run ahp-connect login, or choose one of %s", relay, strings.Join(names, ", "))
}

// Remove deletes the sign-in at a relay from this machine. The relay is not informed.
func (h *Home) Remove(d *device.Device) error {
	if h.Keys != nil {
		_ = h.Keys.Delete(d.Relay) // fails if the key is in the file
	}
	return os.Remove(h.file(d.Relay))
}

// Tokens returns the local tokens of this home.
func (h *Home) Tokens() *Tokens { return NewTokens(filepath.Join(h.Dir, "tokens.json")) }

// Relays returns all sign-ins as relays.
func (h *Home) Relays() (*Relays, error) {
	devices, err := h.Devices()
	if err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		return nil, ErrNotSignedIn
	}
	list := make([]*Relay, 0, len(devices))
	for _, d := range devices {
		list = append(list, NewRelay(d.Relay, deviceTokens{d}))
	}
	return (&Relays{list}).Seal(h), nil
}

// lockFile is replaced by tests of systems without file locks.
var lockFile = auth.LockFile

// lockWait is longer than Idle and CheckAddress hold the lock.
const lockWait = 500 * time.Millisecond

// Lock ensures that only one `ahp-connect up` uses the home, until release.
func (h *Home) Lock() (release func(), err error) {
	for end := time.Now().Add(lockWait); ; time.Sleep(5 * time.Millisecond) {
		release, _, err = h.lock()
		if !errors.Is(err, ErrRuns) || time.Now().After(end) {
			return release, err
		}
	}
}

// lock is Lock. On systems without file locks, such as Windows, locked is false and err is nil.
func (h *Home) lock() (release func(), locked bool, err error) {
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		return nil, false, err
	}
	f, err := os.OpenFile(filepath.Join(h.Dir, "up.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, err
	}
	if locked, err = lockFile(f); err != nil {
		return nil, false, errors.Join(ErrRuns, f.Close())
	}
	return func() { _ = f.Close() }, locked, nil
}

// Idle reports whether `ahp-connect up` does not run. On systems without file locks, it is always false.
func (h *Home) Idle() (bool, error) {
	release, locked, err := h.lock()
	if errors.Is(err, ErrRuns) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	release()
	return locked, nil
}

// upPause is the pause between two looks of AwaitUp.
const upPause = 50 * time.Millisecond

// AwaitUp waits until `ahp-connect up` runs and accepts connections, or ctx ends.
func (h *Home) AwaitUp(ctx context.Context) error {
	for {
		if idle, err := h.Idle(); err == nil && !idle && h.listens(ctx) {
			return nil
		}
		if !clock.Sleep(ctx, upPause) {
			return context.Cause(ctx)
		}
	}
}

// listens reports whether a program listens at the endpoint's address.
func (h *Home) listens(ctx context.Context) bool {
	address, err := h.Address()
	if err != nil {
		return false
	}
	network := "tcp"
	if socket, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", socket
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// NoteAddress records the address of the running endpoint.
func (h *Home) NoteAddress(address string) error {
	return atomicfile.Replace(filepath.Join(h.Dir, "address"), []byte(address+"\n"), 0o600)
}

// Address returns the address of the last running endpoint, or [DefaultListen].
func (h *Home) Address() (string, error) {
	b, err := os.ReadFile(filepath.Join(h.Dir, "address"))
	if errors.Is(err, fs.ErrNotExist) {
		return DefaultListen, nil
	}
	return strings.TrimSpace(string(b)), err
}

// ErrRuns reports that `ahp-connect up` is already running.
var ErrRuns = errors.New("ahp-connect up runs already for this user: use it, or stop it first")

// Relays are the relays that a person may use.
type Relays struct{ list []*Relay }

// NewRelays returns a list of relays.
func NewRelays(list ...*Relay) *Relays { return &Relays{list} }

// All returns all relays.
func (r *Relays) All() []*Relay { return slices.Clone(r.list) }

// Find returns the relay for a host: the named or only one. If the relay is not named and
// there are several, it asks each for its hosts. A relay at which this machine knows the host as
// sealed counts in any case, so that no other relay can take the host's place.
func (r *Relays) Find(ctx context.Context, relay, host string) (*Relay, error) {
	var names []string
	for _, one := range r.list {
		if one.Name == relay || relay == one.URL || relay == "" && len(r.list) == 1 {
			return one, nil
		}
		names = append(names, one.Name)
	}
	if relay != "" {
		return nil, &Refusal{ahp.CloseUnknownHost, fmt.Sprintf("not signed in at %s: use one of %s", relay, strings.Join(names, ", "))}
	}
	var found []*Relay
	var away []string
	for _, one := range r.list {
		hosts, err := one.Hosts(ctx)
		if err != nil {
			away = append(away, one.Name)
		}
		if one.claims(host, hosts) {
			found = append(found, one)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, &Refusal{ahp.CloseUnknownHost, fmt.Sprintf("%s exists at %s and %s: name the relay, as in /ahp/%s/%s", host, found[0].Name, found[1].Name, found[0].Name, host)}
	case len(away) > 0:
		return nil, fmt.Errorf("no reachable relay has %s, and %s does not answer: try again when it does", host, strings.Join(away, ", "))
	}
	return nil, &Refusal{ahp.CloseUnknownHost, fmt.Sprintf("no host named %s: ahp-connect hosts lists those that you may open", host)}
}

// FindHost returns the relay and the name of a host, given as HOST or RELAY/HOST.
func (r *Relays) FindHost(ctx context.Context, name string) (relay *Relay, host string, err error) {
	at, host := SplitHost(name)
	relay, err = r.Find(ctx, at, host)
	return relay, host, err
}

// CheckHost finds the relay of a host, and returns an error that names the relay's hosts if it lacks this host. It returns nil if
// the relay does not answer. Other errors are those of Find.
func (r *Relays) CheckHost(ctx context.Context, at, host string) error {
	relay, err := r.Find(ctx, at, host)
	if err != nil {
		return err
	}
	hosts, err := relay.Hosts(ctx)
	if _, refused := errors.AsType[*Refusal](err); refused {
		return err
	}
	if err != nil || relay.claims(host, hosts) {
		return nil
	}
	var names []string
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	return &Refusal{ahp.CloseUnknownHost, fmt.Sprintf("no host named %s at %s; the hosts that you may open there: %s", host, relay.Name, cmp.Or(strings.Join(names, ", "), "none"))}
}

// SplitHost splits HOST or RELAY/HOST. Without a relay, relay is "".
func SplitHost(name string) (relay, host string) {
	if relay, host, named := strings.Cut(name, "/"); named {
		return relay, host
	}
	return "", name
}

// Hosts returns the hosts of all relays that answer. missing joins the errors of the others.
func (r *Relays) Hosts(ctx context.Context) (all []Host, missing error) {
	for _, one := range r.list {
		hosts, err := one.Hosts(ctx)
		if err != nil {
			missing = errors.Join(missing, err)
		}
		all = append(all, hosts...)
	}
	return all, missing
}
