package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/internal/atomicfile"
)

// Files in the data directory beside the keys. Each relay of a cluster has its own.
const (
	lockName  = "lock"       // held by the running relay
	hostsName = "hosts.json" // the registry's copy

	storeName = "jetstream" // the embedded NATS server's store
	nodeName  = "node"      // the embedded NATS server's permanent name in the cluster

	revokedName   = "revocations.json" // revocations
	peopleName    = "people.json"      // people, devices, invitations, links and pending requests
	addressesName = "addresses.json"   // [Addresses]; removed after a clean exit
	runsName      = "instances"        // the running instance and those that crashed before it; removed after a clean exit
)

// OfThisRun reports whether a backup should omit a file or directory, given relative to
// the data directory, because it belongs to one machine or can be rebuilt from other
// files.
func OfThisRun(name string) bool {
	switch first, _, _ := strings.Cut(filepath.ToSlash(name), "/"); first {
	case lockName, runsName, addressesName, nodeName, storeName:
		return true
	default:
		return strings.HasPrefix(first, storeName+"-")
	}
}

// storeOf returns the JetStream directory for a region. Each region has its own, because
// an old directory holds the Raft state of a different group of servers.
func storeOf(region string) string {
	if region == "" {
		return storeName
	}
	return storeName + "-" + region
}

// maxCrashed is the number of crashed instances to remember.
const maxCrashed = 8

// A dataDir is a locked data directory.
type dataDir struct {
	path string
	lock *os.File

	crashed   []string // instances that crashed, latest first; their processes are gone
	noted     bool
	published bool // the file with addresses exists
	locked    bool // false on systems without file locks
}

// ErrInUse reports that a process has locked a data directory.
var ErrInUse = errors.New("is in use by another relay")

// lockFile is replaced by tests of file systems without file locks.
var lockFile = auth.LockFile

// openDataDir locks an existing directory. The error names the directory, and reports
// a lock held by another relay.
func openDataDir(path string) (*dataDir, error) {
	f, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	d := &dataDir{path: path, lock: f}
	_ = atomicfile.KeepOwner(path, f.Name()) // root in a container may lack this right; the lock works nevertheless
	locked, err := lockFile(f)
	if err == nil && !locked && runtime.GOOS != "windows" { // Windows has no such locks at all
		err = fmt.Errorf("data directory %s: its file system has no file locks, so another relay could use it at the same time; choose a directory on a local disk", path)
		return nil, errors.Join(err, f.Close())
	}
	if err != nil {
		err = fmt.Errorf("data directory %s %w (%w); give each relay its own, with a copy of the keys to serve the same hosts", path, ErrInUse, err)
		return nil, errors.Join(err, f.Close())
	}
	d.locked = locked
	if locked { // without a lock, the instances may still run
		d.crashed, err = readRuns(filepath.Join(path, runsName))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("data directory: %w", err), f.Close())
	}
	return d, nil
}

func readRuns(path string) (runs []string, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, name := range strings.Fields(string(data)) {
		if ahp.CheckName("instance", name) == nil && len(runs) < maxCrashed {
			runs = append(runs, name)
		}
	}
	return runs, err
}

// node returns the permanent name of this directory's NATS server. The name outlives the
// process, because NATS servers with a shared store identify each other by name. At the
// first call, the name is place(), or random if that is "".
func (d *dataDir) node(place func() string) (string, error) {
	path := filepath.Join(d.path, nodeName)
	data, err := os.ReadFile(path)
	if name := strings.TrimSpace(string(data)); err == nil && ahp.CheckName("node", name) == nil {
		return name, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("data directory: %w", err)
	}
	name := cmp.Or(place(), "relay-"+link.NewInstance())
	if err := atomicfile.Replace(path, []byte(name+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	return name, nil
}

// note records the running instance, so that the next start can detect a crash. If the
// disk is full, it records nothing and returns nil: after a crash, the next relay then
// waits until the leases expire.
func (d *dataDir) note(instance string) error {
	text := strings.Join(append([]string{instance}, d.crashed...), "\n") + "\n"
	err := os.WriteFile(filepath.Join(d.path, runsName), []byte(text), 0o600)
	if err != nil && !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("data directory: %w", err)
	}
	d.noted = err == nil
	return nil
}

// close unlocks the directory and records a clean exit.
func (d *dataDir) close() error {
	var err error
	if d.noted {
		err = os.Remove(filepath.Join(d.path, runsName))
	}
	if d.published {
		err = errors.Join(err, os.Remove(filepath.Join(d.path, addressesName)))
	}
	return errors.Join(err, auth.CloseLocked(d.lock))
}
