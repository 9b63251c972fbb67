package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"
)

// Files in the data directory beside the keys. A relay of a cluster has its own.
const (
	lockName  = "lock"       // held by the relay that runs
	hostsName = "hosts.json" // what the registry knows

	storeName = "jetstream" // the embedded NATS server's
	nodeName  = "node"      // what the embedded NATS server is called among those of the cluster, for ever

	revokedName = "revocations.json" // what is revoked
	peopleName  = "people.json"      // people, devices and who asks to be let in
	runsName    = "instances"        // the instance that runs, and those that crashed before it; gone after a proper end
)

// OfThisRun reports whether a file or directory, named from the data directory, is of
// no use in another one: what belongs to one machine, and what is known from other files.
func OfThisRun(name string) bool {
	switch first, _, _ := strings.Cut(filepath.ToSlash(name), "/"); first {
	case lockName, runsName, nodeName, storeName:
		return true
	default:
		return strings.HasPrefix(first, storeName+"-")
	}
}

// storeOf returns the directory for what the embedded NATS server has of JetStream. A
// relay that comes into a region begins another: who keeps what was decided among others.
func storeOf(region string) string {
	if region == "" {
		return storeName
	}
	return storeName + "-" + region
}

// maxFormer is how many crashed instances are remembered.
const maxFormer = 8

// A dataDir is a data directory that no other relay uses at the same time.
type dataDir struct {
	path string
	lock *os.File

	former []string // instances that did not end properly, the latest first; they cannot run any more
	noted  bool
	locked bool // as far as this system can
}

// openDataDir locks a directory that is there. The error names it, and says if
// another relay uses it.
func openDataDir(path string) (*dataDir, error) {
	f, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	d := &dataDir{path: path, lock: f}
	locked, err := auth.LockFile(f)
	if err != nil {
		err = fmt.Errorf("data directory %s is used by another relay (%w); each has its own, with a copy of the keys if they are to serve the same hosts", path, err)
		return nil, errors.Join(err, f.Close())
	}
	d.locked = locked
	if locked { // else they may run
		d.former, err = readRuns(filepath.Join(path, runsName))
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
		if ahp.CheckName("instance", name) == nil && len(runs) < maxFormer {
			runs = append(runs, name)
		}
	}
	return runs, err
}

// node returns the name of this directory's NATS server: servers that have the store
// together know each other by their names, so it outlives the process.
func (d *dataDir) node() (string, error) {
	path := filepath.Join(d.path, nodeName)
	data, err := os.ReadFile(path)
	if name := strings.TrimSpace(string(data)); err == nil && ahp.CheckName("node", name) == nil {
		return name, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("data directory: %w", err)
	}
	name := "relay-" + link.NewInstance()
	if err := auth.ReplaceFile(path, []byte(name+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	return name, nil
}

// note writes down that an instance runs, so that its successor knows if it
// crashes.
func (d *dataDir) note(instance string) error {
	text := strings.Join(append([]string{instance}, d.former...), "\n") + "\n"
	if err := os.WriteFile(filepath.Join(d.path, runsName), []byte(text), 0o600); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	d.noted = true
	return nil
}

// close lets others use the directory. The instance that was noted has ended
// properly.
func (d *dataDir) close() error {
	var err error
	if d.noted {
		err = os.Remove(filepath.Join(d.path, runsName))
	}
	return errors.Join(err, d.lock.Close())
}
