package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// CheckTypes type-checks the sources with the TypeScript compiler in
// package-lock.json. npm installs it once into the user's cache directory. Without
// Node.js, npm or a registry, CheckTypes reports to w that it skips the check.
func CheckTypes(dir string, w io.Writer) error {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			fmt.Fprintf(w, "types of the console not checked: no %s on the PATH\n", program)
			return nil
		}
	}
	modules, err := installCompiler(dir)
	if err != nil {
		fmt.Fprintf(w, "types of the console not checked: %v\n", err)
		return nil
	}
	config, err := checkConfig(dir, modules)
	if err != nil {
		return err
	}
	defer os.Remove(config)
	cmd := exec.Command("node", filepath.Join(modules, "typescript", "bin", "tsc"), "-p", config)
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("tsc: %w", err)
	}
	return nil
}

// installCompiler returns a node_modules directory with the packages in
// package-lock.json. The lock file's hash names it.
func installCompiler(dir string) (modules string, err error) {
	lock, err := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(lock)
	target := filepath.Join(cache, "ahp-relay-console", hex.EncodeToString(sum[:8]))
	modules = filepath.Join(target, "node_modules")
	if _, err := os.Stat(filepath.Join(modules, "typescript", "bin", "tsc")); err == nil {
		return modules, nil
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(target), "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := install(dir, tmp, io.Discard, "--fetch-retries=0", "--prefer-offline"); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, target); err != nil && !os.IsExist(err) {
		return "", err
	}
	return modules, nil
}

// checkConfig writes a tsconfig.json that checks dir's sources against modules, and
// returns its name.
func checkConfig(dir, modules string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	content, err := json.Marshal(map[string]any{
		"extends": filepath.Join(abs, "tsconfig.json"),
		"compilerOptions": map[string]any{
			"baseUrl": modules, "paths": map[string][]string{"*": {"./*"}}, "types": []string{},
		},
		"include": []string{filepath.Join(abs, "src")},
	})
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp("", "tsconfig-*.json")
	if err != nil {
		return "", err
	}
	if _, err := f.Write(content); err != nil {
		f.Close()
		return "", err
	}
	return f.Name(), f.Close()
}
