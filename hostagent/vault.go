package hostagent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/internal/atomicfile"
	"ahprelay/internal/sealed"
)

// A vault holds a sealed host's key, its devices and the list of removed devices, in a
// file of the state directory. It is safe for concurrent use.
type vault struct {
	path   string
	secret sealed.Secret
	fence  atomicfile.Fence

	mu      sync.Mutex // guards the fields below
	state   vaultState
	unsaved bool // the last write of the file has failed
	code    *pairingCode
	waiting map[sealed.Fingerprint]*waitingDevice
	here    map[sealed.Fingerprint]int // open connections of each link's device
}

// vaultState is the JSON of a vault's file.
type vaultState struct {
	Key     []byte         `json:"key"`
	Devices []vaultDevice  `json:"devices"`
	Removed []vaultRemoved `json:"removed"`

	// For notifications.
	Signer   []byte         `json:"signer,omitempty"` // signs notifications; from [sealed.Device.Private]
	Browsers []vaultBrowser `json:"browsers,omitempty"`
	Asked    []vaultAsked   `json:"asked,omitempty"`
}

// A vaultDevice is a device that the host has paired.
type vaultDevice struct {
	Key      []byte      `json:"key"`
	Verifier []byte      `json:"verifier"`
	Name     string      `json:"name"`
	Subject  string      `json:"subject"`
	Level    auth.Access `json:"level"`
	Channels []string    `json:"channels,omitempty"`
	Since    time.Time   `json:"since"`
	Seen     time.Time   `json:"seen"`
	End      time.Time   `json:"end"`

	People int `json:"people,omitempty"` // for a link: most connections at the same time; 0 for a device
}

// A vaultRemoved is a removed device's fingerprint, or a removed grant's serial.
type vaultRemoved struct {
	What string    `json:"what"`
	When time.Time `json:"when"`
}

func (d *vaultDevice) identity() sealed.Identity {
	return sealed.Identity{Key: sealed.Key(d.Key), Verifier: sealed.Verifier(d.Verifier)}
}

// Bounds of a vault.
const (
	codeLife    = 10 * time.Minute
	codeTries   = 5
	confirmTime = 5 * time.Minute
	seenEvery   = time.Hour // Seen is updated at most this often
	maxDevices  = 1000
	maxWaiting  = 4 // most pairings that wait for a person

	// maxRemoved bounds the list of removed devices and grants. The list never forgets
	// an entry, because a grant may start at any later time. Removals by devices may
	// fill half of the list, so the owner always has room.
	maxRemoved = 1 << 14
)

// firstSubject is the subject of a pairing code that names none.
const firstSubject = "owner"

// openVault opens a host's vault, or creates one with a new key.
func openVault(dir, tenant, host string) (*vault, error) {
	if dir == "" {
		return nil, errors.New("a sealed host needs a state directory: give --state-dir")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	v := &vault{path: filepath.Join(dir, "sealed."+tenant+"."+host+".json"), waiting: map[sealed.Fingerprint]*waitingDevice{}, here: map[sealed.Fingerprint]int{}}
	data, err := os.ReadFile(v.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if v.secret, err = sealed.NewSecret(); err != nil {
			return nil, err
		}
		v.state.Key = v.secret.Private()
		return v, v.saveLocked()
	case err != nil:
		return nil, fmt.Errorf("sealed host: %w", err)
	}
	if v.state, err = readVault(v.path, data); err != nil {
		return nil, err
	}
	if v.secret, err = sealed.ReadSecret(v.state.Key); err != nil {
		return nil, fmt.Errorf("sealed host: %s: %w", v.path, err)
	}
	return v, nil
}

// readVault parses the file of a vault.
func readVault(path string, data []byte) (state vaultState, err error) {
	if err := json.Unmarshal(data, &state); err != nil {
		return state, fmt.Errorf("sealed host: %s is damaged: restore it from a backup; without it, remove it and pair all devices again: %w", path, err)
	}
	for _, b := range state.Browsers {
		if len(b.Key) != sealed.KeySize || len(b.Verifier) != sealed.VerifierSize {
			return state, fmt.Errorf("sealed host: %s has a damaged browser: restore the file from a backup", path)
		}
	}
	for _, d := range state.Devices {
		if len(d.Key) != sealed.KeySize || len(d.Verifier) != sealed.VerifierSize {
			return state, fmt.Errorf("sealed host: %s has a damaged device: restore the file from a backup", path)
		}
	}
	return state, nil
}

// reread reads the file again, because a previous host-agent may have changed it until this one got
// the host. It fails if the host has a different key now.
func (v *vault) reread() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	data, err := os.ReadFile(v.path)
	if err != nil {
		return fmt.Errorf("sealed host: %w", err)
	}
	state, err := readVault(v.path, data)
	if err == nil && !bytes.Equal(state.Key, v.state.Key) {
		err = fmt.Errorf("sealed host: %s has a different key than at the start of this host-agent: start it again", v.path)
	}
	if err == nil {
		v.state = state
	}
	return err
}

// saveLocked writes the file, and returns when it is on disk.
func (v *vault) saveLocked() error {
	err := v.fence.ReplaceJSON(v.path, &v.state, "  ")
	v.unsaved = err != nil
	return err
}

// changeLocked makes a change of the devices and removals, and writes the file. If that
// fails, the change is undone, because a restarted host-agent would not know it. The
// change must not modify the present slices in place.
func (v *vault) changeLocked(change func(*vaultState)) error {
	before := v.state
	change(&v.state)
	err := v.saveLocked()
	if err != nil {
		v.state = before
	}
	return err
}

func (v *vault) deviceLocked(f sealed.Fingerprint) *vaultDevice {
	for i := range v.state.Devices {
		if v.state.Devices[i].identity().Fingerprint() == f {
			return &v.state.Devices[i]
		}
	}
	return nil
}

func (v *vault) Holder(f sealed.Fingerprint) (sealed.Holder, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.deviceLocked(f)
	if d == nil {
		return sealed.Holder{}, false
	}
	return sealed.Holder{Identity: d.identity(), Subject: d.Subject, Level: d.Level, Channels: d.Channels, End: d.End}, true
}

func (v *vault) Removed(what string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.ContainsFunc(v.state.Removed, func(r vaultRemoved) bool { return r.What == what })
}

// admit returns the authority of a device. If the device presents no grants, it must be
// paired with this host, and admit records the time of its visit. If only that fails, admit
// returns the authority as it is on disk, with the error.
func (v *vault) admit(device sealed.Identity, grants []string, now time.Time) (*sealed.Authority, error) {
	a, err := sealed.Admit(v, v.secret.Public(), device, grants, now)
	if err != nil || len(grants) > 0 {
		return a, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.deviceLocked(device.Fingerprint())
	switch {
	case d == nil:
		return nil, sealed.ErrRemoved // the device was removed in the meantime
	case d.People > 0: // a link ends at the time set by its maker
		return a, nil
	}
	seen, end := d.Seen, d.End
	a.End = now.Add(sealed.MaxLife)
	if now.Sub(seen) < seenEvery {
		return a, nil
	}
	d.Seen, d.End = now.UTC(), a.End.UTC()
	if err = v.saveLocked(); err != nil {
		d.Seen, d.End, a.End = seen, end, end
	}
	return a, err
}

// errManyRemoved reports that the list of removed devices and grants is full.
var errManyRemoved = errors.New("this host has removed too many devices and grants: give it a new key, by removing its file in the host-agent's state directory, and pair its devices again")

// remove removes a device, or a grant by its serial, durably. owner is true for an order
// from the host's own terminal, which may fill the whole list of removals.
func (v *vault) remove(what string, owner bool) error {
	if _, err := sealed.ParseFingerprint(what); err != nil {
		return fmt.Errorf("%w: \"host-agent devices\" lists them", err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	room := maxRemoved
	if !owner {
		room /= 2
	}
	if len(v.state.Removed) >= room {
		return errManyRemoved
	}
	return v.changeLocked(func(s *vaultState) {
		s.Devices = slices.DeleteFunc(slices.Clone(s.Devices), func(d vaultDevice) bool { return d.identity().Fingerprint().String() == what })
		s.Browsers = slices.DeleteFunc(slices.Clone(s.Browsers), func(b vaultBrowser) bool { return b.identity().Fingerprint().String() == what })
		s.Removed = slices.DeleteFunc(slices.Clone(s.Removed), func(r vaultRemoved) bool { return r.What == what })
		s.Removed = append(s.Removed, vaultRemoved{what, time.Now().UTC()})
	})
}

func (v *vault) fingerprint() sealed.Fingerprint { return sealed.HostFingerprint(v.secret.Public()) }

// DeviceInfo describes a device of a sealed host.
type DeviceInfo struct {
	Fingerprint string      `json:"fingerprint"`
	Words       string      `json:"words"`
	Name        string      `json:"name"`
	Subject     string      `json:"subject"`
	Level       auth.Access `json:"level"`
	Since       time.Time   `json:"since"`
	Seen        time.Time   `json:"seen"`
	End         time.Time   `json:"end"`
	Session     string      `json:"session,omitempty"` // for a link: URI of the session
	People      int         `json:"people,omitempty"`  // for a link: most connections at the same time
}

func (v *vault) devices() []DeviceInfo {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := []DeviceInfo{}
	for _, d := range v.state.Devices {
		f := d.identity().Fingerprint()
		info := DeviceInfo{Fingerprint: f.String(), Words: f.Words(), Name: d.Name, Subject: d.Subject, Level: d.Level, Since: d.Since, Seen: d.Seen, End: d.End, People: d.People}
		if d.People > 0 && len(d.Channels) == 1 {
			info.Session = d.Channels[0]
		}
		list = append(list, info)
	}
	return list
}

// A pairingCode is the latest code; it may have expired.
type pairingCode struct {
	code    sealed.Code
	subject string
	level   auth.Access
	until   time.Time
	tries   int
}

// PairingCode is a code that a person types at a device.
type PairingCode struct {
	Code    string      `json:"code"`
	Link    string      `json:"link"` // the link in the QR code
	Words   string      `json:"words"`
	Host    string      `json:"host"`
	Subject string      `json:"subject"`
	Level   auth.Access `json:"level"`
	Expires time.Time   `json:"expires"`
}

var errManyDevices = fmt.Errorf("this host has %d devices: remove some first", maxDevices)

// makeCode makes a code in place of the previous one, and completes its link. Without a
// subject and a level, the device that uses the code becomes an owner of the host.
func (v *vault) makeCode(subject string, level auth.Access, link sealed.PairLink) (PairingCode, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	subject, level = cmp.Or(subject, firstSubject), cmp.Or(level, auth.AccessAdmin)
	if len(v.state.Devices) >= maxDevices {
		return PairingCode{}, errManyDevices
	}
	if err := sealed.CheckSubject(subject, level); err != nil {
		return PairingCode{}, err
	}
	v.code = &pairingCode{code: sealed.NewCode(), subject: subject, level: level, until: time.Now().Add(codeLife)}
	link.Code, link.Key = v.code.code, v.fingerprint()
	return PairingCode{v.code.code.String(), link.String(), v.fingerprint().Words(), link.Host, subject, level, v.code.until}, nil
}

func (v *vault) validCode() (sealed.Code, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.validCodeLocked()
}

func (v *vault) validCodeLocked() (sealed.Code, bool) {
	if v.code == nil || !time.Now().Before(v.code.until) || v.code.tries >= codeTries {
		return sealed.Code{}, false
	}
	return v.code.code, true
}

// try counts an attempt with the code. It returns false if no code is valid.
func (v *vault) try() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.validCodeLocked()
	if ok {
		v.code.tries++
	}
	return ok
}

// A waitingDevice is a device that waits for a person to confirm its pairing.
type waitingDevice struct {
	PairingRequest
	decided chan bool // capacity 1
	code    *pairingCode
}

// PairingRequest describes a device that has proved the code, for the person who
// confirms it.
type PairingRequest struct {
	Fingerprint string      `json:"fingerprint"`
	Words       string      `json:"words"`
	Name        string      `json:"name"`
	Subject     string      `json:"subject"`
	Level       auth.Access `json:"level"`
}

// errCodeUsed reports that another device has used the code first, or that too many devices
// wait.
var errCodeUsed = errors.New("the pairing code has been used")

// errRemovedKeys reports that a removed device tries to pair. Its return would also
// restore all devices that it has admitted.
var errRemovedKeys = errors.New("this device has been removed: pair it with new keys")

// proved marks the code as used by a device that has proved it.
func (v *vault) proved(code sealed.Code, device sealed.Identity, name string) (*waitingDevice, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.code == nil || v.code.code != code || len(v.waiting) >= maxWaiting {
		return nil, errCodeUsed
	}
	f := device.Fingerprint()
	if slices.ContainsFunc(v.state.Removed, func(r vaultRemoved) bool { return r.What == f.String() }) {
		return nil, errRemovedKeys
	}
	w := &waitingDevice{PairingRequest{f.String(), f.Words(), name, v.code.subject, v.code.level}, make(chan bool, 1), v.code}
	v.code = nil
	v.waiting[f] = w
	return w, nil
}

// requests returns the devices that wait for confirmation.
func (v *vault) requests() []PairingRequest {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := []PairingRequest{}
	for _, w := range v.waiting {
		list = append(list, w.PairingRequest)
	}
	return list
}

// decide confirms or refuses a waiting device.
func (v *vault) decide(fingerprint string, admitted bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, w := range v.waiting {
		if w.Fingerprint == fingerprint {
			select {
			case w.decided <- admitted:
			default: // already decided
			}
			return nil
		}
	}
	return errors.New(`no such device waits: "host-agent devices" lists them`)
}

// lost makes a device's code valid again, because the device's connection has ended before a person
// decided. A newer code stays.
func (v *vault) lost(w *waitingDevice) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.code == nil && len(w.decided) == 0 {
		v.code = w.code
	}
}

// leave ends the wait of a device. If admitted is true, it stores the device durably.
func (v *vault) leave(w *waitingDevice, device sealed.Identity, admitted bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.waiting[device.Fingerprint()] == w { // the device may have proved a newer code
		delete(v.waiting, device.Fingerprint())
	}
	if !admitted {
		return nil
	}
	now := time.Now().UTC()
	f := device.Fingerprint()
	others := slices.DeleteFunc(slices.Clone(v.state.Devices), func(d vaultDevice) bool { return d.identity().Fingerprint() == f })
	if len(others) >= maxDevices { // links came since the code was made
		return errManyDevices
	}
	return v.changeLocked(func(s *vaultState) {
		s.Devices = append(others, vaultDevice{
			Key: device.Key[:], Verifier: device.Verifier[:], Name: w.Name, Subject: w.Subject, Level: w.Level,
			Since: now, Seen: now, End: now.Add(sealed.MaxLife),
		})
	})
}

// pairedAfter reports whether a device, given by its fingerprint, was paired after a time. A
// pairing that is in the future, because the clock was set back, does not count yet.
func (v *vault) pairedAfter(fingerprint string, at time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.ContainsFunc(v.state.Devices, func(d vaultDevice) bool {
		return d.Since.After(at) && !d.Since.After(time.Now()) && d.identity().Fingerprint().String() == fingerprint
	})
}

// empty reports whether no device is paired. The devices of links do not count.
func (v *vault) empty() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !slices.ContainsFunc(v.state.Devices, func(d vaultDevice) bool { return d.People == 0 })
}

// removedOf reports whether an authority depends on a removed device or grant.
func (v *vault) removedOf(a *sealed.Authority) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.ContainsFunc(v.state.Removed, func(r vaultRemoved) bool { return a.Rests(r.What) })
}
