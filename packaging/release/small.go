package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A change replaces text in a file of a library.
type change struct{ module, file, text, by string }

// changes let the linker leave out what no program uses. Kong looks up methods by variable
// names, so the linker keeps all exported methods of all types, which is a sixth of each
// program; the changed kong uses constant names. The NATS client has an encoder that uses
// encoding/gob, which nothing here asks for, and its own compression for WebSockets,
// which nothing here turns on.
var changes = []change{
	{kong, "callbacks.go", "value.MethodByName(name)", "constantValue(value, name)"},
	{kong, "callbacks.go", "value.Addr().MethodByName(name)", "constantValue(value.Addr(), name)"},
	{kong, "callbacks.go", "t.MethodByName(name)", "constantType(t, name)"},
	{kong, "callbacks.go", "func getMethod(", constants() + "func getMethod("},
	{kong, "context.go", "i < p.NumMethod()", "i < 0"}, // providers: see small
	{kong, "context.go", "t.Method(i)", "reflect.Method{}"},
	{kong, "context.go", "p.Method(i)", "reflect.Value{}"},
	{"github.com/nats-io/nats.go", "enc.go", "RegisterEncoder(GOB_ENCODER, &builtin.GobEncoder{})", ""},
	{"github.com/nats-io/nats.go", "encoders/builtin/gob_enc.go", "package builtin", "//go:build ignore\n\npackage builtin"},
	{"github.com/nats-io/nats.go", "ws.go", "github.com/klauspost/compress/flate", "compress/flate"},
}

const kong = "github.com/alecthomas/kong"

// constants returns functions that look up the methods that kong calls.
func constants() string {
	var b strings.Builder
	for _, kind := range [][2]string{{"Value", "reflect.Value"}, {"Type", "(reflect.Method, bool)"}} {
		fmt.Fprintf(&b, "func constant%s(of reflect.%[1]s, name string) %s {\n\tswitch name {\n", kind[0], kind[1])
		for _, hook := range []string{"BeforeReset", "BeforeResolve", "BeforeApply", "AfterApply", "AfterRun", "Run"} {
			fmt.Fprintf(&b, "\tcase %q:\n\t\treturn of.MethodByName(%[1]q)\n", hook)
		}
		b.WriteString("\t}\n\tpanic(\"unknown hook \" + name)\n}\n\n")
	}
	return b.String()
}

// changedFolder has the changed libraries. It is below the module's root, so that build
// information names the same place on every machine.
const changedFolder = "bin/release"

// small writes changed copies of the libraries, and a module file that uses them. It
// returns the module file.
func (r *release) small() (string, error) {
	if r.modFile != "" {
		return r.modFile, nil
	}
	// Kong finds providers by a prefix of their names. We have none.
	found, err := filepath.Glob(filepath.Join(r.root, "cmd", "*", "*.go"))
	if err != nil {
		return "", err
	}
	for _, path := range found {
		if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), ") Provide") {
			return "", fmt.Errorf("%s has a method Provide…, which needs the unchanged kong, or cannot be read: %v", path, err)
		}
	}
	folder := filepath.Join(r.root, changedFolder)
	mod, err := os.ReadFile(filepath.Join(r.root, "go.mod"))
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(folder); err != nil {
		return "", err
	}
	copied := map[string]bool{}
	for _, c := range changes {
		copy := filepath.Join(folder, filepath.Base(c.module))
		if !copied[c.module] {
			copied[c.module] = true
			from, err := output(r.root, "go", "list", "-m", "-f", "{{.Dir}}", c.module)
			if err != nil {
				return "", err
			}
			if err := os.CopyFS(copy, os.DirFS(from)); err != nil {
				return "", err
			}
			mod = fmt.Appendf(mod, "\nreplace %s => ./%s/%s\n", c.module, changedFolder, filepath.Base(c.module))
		}
		path := filepath.Join(copy, c.file)
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		if !strings.Contains(string(text), c.text) {
			return "", fmt.Errorf("%s %s has no %s any more: look whether the change is still needed", c.module, c.file, c.text)
		}
		if err := errors.Join(os.Chmod(path, 0o644), os.WriteFile(path, []byte(strings.ReplaceAll(string(text), c.text, c.by)), 0o644)); err != nil {
			return "", err
		}
	}
	sums, err := os.ReadFile(filepath.Join(r.root, "go.sum"))
	if err != nil {
		return "", err
	}
	r.modFile = filepath.Join(folder, "go.mod")
	return r.modFile, errors.Join(os.WriteFile(r.modFile, mod, 0o644), os.WriteFile(filepath.Join(folder, "go.sum"), sums, 0o644))
}

// most are the bounds of the programs' sizes on linux_amd64, in bytes. TestHostAgentStaysSmall
// warns before a release does.
var most = map[string]int{"host-agent": 18_000_000, "ahp-connect": 15_000_000, "relay": 40_000_000}
