package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"ahprelay/auth"
	"ahprelay/cmd/internal/cli"
	"ahprelay/gateway"
	"ahprelay/internal/atomicfile"
)

type backupCmd struct {
	dataFlag
	File string `arg:"" help:"File to create; - is standard output. Every reader of this file has the keys." placeholder:"FILE"`
}

func (c *backupCmd) Run(_ context.Context, s *streams) (err error) {
	if _, err := c.keys(); err != nil {
		return err
	}
	out := s.out
	if c.File != "-" {
		f, opened := os.OpenFile(c.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if opened != nil {
			return fmt.Errorf("backup: %w", opened)
		}
		defer func() {
			err = errors.Join(err, f.Sync(), f.Close())
			if err != nil {
				_ = os.Remove(c.File)
			}
		}()
		out = f
	}
	if err := backUp(out, c.DataDir); err != nil {
		return fmt.Errorf("backup of %s: %w", c.DataDir, err)
	}
	return nil
}

// backUp writes a .tar.gz with the files that a copy of the data directory needs.
func backUp(w io.Writer, dir string) error {
	zip := gzip.NewWriter(w)
	files := tar.NewWriter(zip)
	var own fs.FileInfo
	if f, ok := w.(*os.File); ok {
		var err error
		if own, err = f.Stat(); err != nil {
			return err
		}
	}
	if err := addFiles(files, dir, "", true, own); err != nil {
		return err // without an end, so that restore refuses what is written
	}
	return errors.Join(files.Close(), zip.Close())
}

// addFiles adds the files of a directory, whose name in the backup is as. WalkDir follows no symbolic link, but
// /var/lib/ahp-relay is one if systemd makes it, and the keys may be on another volume. If links is false,
// addFiles does not follow links to further directories, because they may lead back. own is the
// backup itself, or nil. Each kind of entry has its branch.
func addFiles(files *tar.Writer, dir, as string, links bool, own fs.FileInfo) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		name = filepath.Join(as, name)
		switch {
		case err != nil && errors.Is(err, fs.ErrNotExist):
			return nil // a running relay has replaced it
		case err != nil:
			return err
		case gateway.OfThisRun(name):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		kind := d.Type()
		if kind&fs.ModeSymlink != 0 {
			if info, err := os.Stat(path); err == nil {
				kind = info.Mode()
			}
			if kind.IsDir() && links {
				return addFiles(files, path, name, false, own)
			}
		}
		if !kind.IsRegular() {
			return nil
		}
		return addFile(files, path, name, own)
	})
}

// addFile adds a file, unless a running relay has removed it.
func addFile(files *tar.Writer, path, name string, own fs.FileInfo) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return err
	} else if os.SameFile(info, own) {
		return errors.New("the backup would contain itself and all backups beside it: write it outside of the data directory")
	}
	data, err := io.ReadAll(f)
	if err == nil {
		err = files.WriteHeader(&tar.Header{Name: filepath.ToSlash(name), Mode: 0o600, Size: int64(len(data)), Typeflag: tar.TypeReg})
	}
	if err == nil {
		_, err = files.Write(data)
	}
	return err
}

type restoreCmd struct {
	DataDir string `help:"Directory to create, or an empty directory." required:"" type:"path" placeholder:"DIR"`
	File    string `arg:"" help:"File written by relay backup; - is standard input." placeholder:"FILE"`
}

// Run creates a data directory from a backup.
func (c *restoreCmd) Run(ctx context.Context, s *streams) error {
	var in io.Reader
	if c.File == "-" {
		in = cli.Stdin(ctx)
	} else {
		f, err := os.Open(c.File)
		if err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		defer f.Close()
		in = f
	}
	if there, err := os.ReadDir(c.DataDir); err == nil && len(there) > 0 {
		return fmt.Errorf("restore: %s is not empty; stop the relay there and move its files away, or give a new directory", c.DataDir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore: %w", err)
	}
	made, err := restore(in, c.DataDir)
	if err == nil {
		_, err = auth.ExistingKeys(c.DataDir)
	}
	var dir string
	if err == nil {
		dir, err = filepath.EvalSymlinks(c.DataDir) // as for a backup
	}
	if err == nil {
		err = atomicfile.KeepOwner(dir, dir)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // restore takes it for a damaged backup
	}
	if err != nil {
		return fmt.Errorf("restore into %s: %w", c.DataDir, errors.Join(err, takeBack(c.DataDir, made)))
	}
	_, err = fmt.Fprintf(s.out, "restored into %s; on a relay outside a cluster, revocations since the backup are lost\n", c.DataDir)
	return err
}

// takeBack removes the files of a failed restore, and the directories that are then empty. Files of a relay that has been
// started in the directory meanwhile stay.
func takeBack(dir string, made []string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range made {
		err = errors.Join(err, root.Remove(name))
		removeEmpty(root, filepath.Dir(name))
	}
	return errors.Join(err, root.Close())
}

// removeEmpty removes a directory and those above it, as far as they are empty.
func removeEmpty(root *os.Root, dir string) {
	for ; dir != "." && root.Remove(dir) == nil; dir = filepath.Dir(dir) {
	}
}

// maxRestored bounds a file in a backup, far above any file of a data directory, in
// bytes.
const maxRestored = 4 << 30

// restore unpacks a backup below dir only, readable for this user alone. It returns the names of the files that it has made,
// also after an error.
func restore(r io.Reader, dir string) (made []string, err error) {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("not a backup: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for files := tar.NewReader(zip); ; {
		head, err := files.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, zip) // to the check sum, which is behind the archive's end
			if err == nil {
				return made, nil
			}
		}
		if err != nil {
			return made, damaged(err)
		}
		if head.Typeflag != tar.TypeReg || head.Size > maxRestored || strings.Contains(head.Name, "\\") || gateway.OfThisRun(filepath.FromSlash(head.Name)) {
			return made, fmt.Errorf("not a backup: it contains %q", head.Name)
		}
		name := filepath.FromSlash(head.Name)
		f, err := createIn(root, name)
		if err != nil {
			return made, err
		}
		made = append(made, name)
		_, err = io.Copy(f, files)
		if err := errors.Join(damaged(err), f.Sync(), f.Close()); err != nil {
			return made, err
		}
	}
}

// damaged returns the error for a backup that cannot be read to its end. Errors of the
// disk stay as they are.
func damaged(err error) error {
	if _, ofDisk := errors.AsType[*fs.PathError](err); ofDisk || err == nil {
		return err
	}
	return fmt.Errorf("not a backup, or a damaged one: %w", err)
}

// createIn creates a file, and its directory if that does not exist.
func createIn(root *os.Root, name string) (*os.File, error) {
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		removeEmpty(root, filepath.Dir(name))
	}
	return f, err
}
