package agents

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Bounds of the search for repositories.
const (
	maxDepth    = 4 // levels below the home directory
	maxFolders  = 200
	maxSearch   = 20_000 // directories
	searchTime  = 3 * time.Second
	gitFolder   = ".git"
	skippedDirs = "node_modules vendor target build dist Library AppData snap go"
)

// Repositories returns the git repositories below a directory, nearest first. It does not
// follow symbolic links, and skips hidden directories, skippedDirs, and the directories
// inside a repository.
func Repositories(home string) (list []string) {
	deadline := time.Now().Add(searchTime)
	level := []string{home}
	for depth, seen := 0, 0; depth <= maxDepth && len(level) > 0; depth++ {
		var next []string
		for _, dir := range level {
			if seen++; seen > maxSearch || time.Now().After(deadline) {
				return list
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				continue
			}
			if dir != home && slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == gitFolder }) {
				if list = append(list, dir); len(list) >= maxFolders {
					return list
				}
				continue
			}
			for _, e := range entries {
				if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !slices.Contains(strings.Fields(skippedDirs), e.Name()) {
					next = append(next, filepath.Join(dir, e.Name()))
				}
			}
		}
		level = next
	}
	return list
}

var errNoFolder = errors.New("no git repository found below your home directory: give the folder where sessions may run with --folder")

// folders returns the given folders or, without any, the repositories below the home
// directory, with symbolic links resolved.
func folders(given []string) ([]string, error) {
	if len(given) == 0 {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		if given = Repositories(home); len(given) == 0 {
			return nil, errNoFolder
		}
	}
	var list []string
	for _, folder := range given {
		path, err := filepath.Abs(folder)
		if err == nil {
			path, err = filepath.EvalSymlinks(path)
		}
		if err != nil {
			return nil, fmt.Errorf("--folder: %w", err)
		}
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("--folder: %s is not a folder", folder)
		}
		list = append(list, path)
	}
	return list, nil
}
