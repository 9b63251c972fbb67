// Package atomicfile writes files durably. A crash leaves a replaced file either complete or
// as it was.
package atomicfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Create writes a new file and syncs it to disk. A crash may leave an incomplete file.
func Create(path string, data []byte, perm fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// Replace replaces a file's content. After a crash, even of the machine, the file
// has either the old content or the new, complete.
func Replace(path string, data []byte, perm fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(perm), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return SyncDir(filepath.Dir(path))
}

// ReplaceJSON replaces a file's content by v as JSON, readable by its owner only. An indent
// of "" puts the JSON on one line.
func ReplaceJSON(path string, v any, indent string) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if indent != "" {
		var indented bytes.Buffer
		_ = json.Indent(&indented, data, "", indent) // encoded JSON is valid
		data = indented.Bytes()
	}
	return Replace(path, append(data, '\n'), 0o600)
}

// A Fence returns an error if a different process owns this process's files now. A nil Fence
// permits each write.
type Fence func() error

// ReplaceJSON is the function ReplaceJSON, if the fence permits the write.
func (f Fence) ReplaceJSON(path string, v any, indent string) error {
	if f != nil {
		if err := f(); err != nil {
			return err
		}
	}
	return ReplaceJSON(path, v, indent)
}

// ReadJSON decodes a file into v, and reports whether the file exists. A missing file is
// no error.
func ReadJSON(path string, v any) (exists bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	return true, err
}

// SyncDir syncs a directory, so that new names survive a crash of the machine.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // directories cannot be synced there
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
