package acp

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A Program is a coding agent that speaks the Agent Client Protocol on standard input
// and output.
type Program struct {
	Name    string   // short name, as in --agent
	Title   string   // for people
	Command []string // the program and its arguments
}

// A Kind is an agent that this package can find.
type Kind struct {
	Name  string
	Title string

	// Command speaks the protocol. Its program is looked up on PATH.
	Command []string

	// Program is the agent's own program if Command starts an adapter; otherwise it is
	// empty.
	Program string

	// Package is the npm package that contains Command.
	Package string
}

// Kinds are the known agents, by name. docs/agents.md has the tested ones.
var Kinds = []Kind{
	{Name: "claude", Title: "Claude Code", Command: []string{"claude-agent-acp"}, Program: "claude", Package: "@agentclientprotocol/claude-agent-acp"},
	{Name: "codex", Title: "Codex", Command: []string{"codex-acp"}, Program: "codex", Package: "@agentclientprotocol/codex-acp"},
	{Name: "copilot", Title: "GitHub Copilot CLI", Command: []string{"copilot", "--acp"}, Package: "@github/copilot"},
	{Name: "gemini", Title: "Gemini CLI", Command: []string{"gemini", "--acp"}, Package: "@google/gemini-cli"},
	{Name: "opencode", Title: "OpenCode", Command: []string{"opencode", "acp"}, Package: "opencode-ai"},
	{Name: "pi", Title: "pi", Command: []string{"pi-acp"}, Program: "pi", Package: "pi-acp"},
	{Name: "qwen", Title: "Qwen Code", Command: []string{"qwen", "--acp"}, Package: "@qwen-code/qwen-code"},
}

// Install returns the command that installs the agent, or its adapter.
func (k Kind) Install() string { return "npm install -g " + k.Package }

// Find returns the agent's program with absolute paths. The error names the command
// that installs it.
func (k Kind) Find() (Program, error) {
	found, err := absolute(k.Command)
	if err == nil {
		return Program{Name: k.Name, Title: k.Title, Command: found}, nil
	}
	if _, own := exec.LookPath(k.Program); k.Program != "" && own == nil {
		return Program{}, fmt.Errorf("%s is installed, but its adapter %s is not: %s", k.Title, k.Command[0], k.Install())
	}
	return Program{}, fmt.Errorf("%s is not on PATH: %s", k.Command[0], k.Install())
}

// namePattern matches the name of an agent. The name becomes part of its sessions'
// URIs.
var namePattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// Parse returns the program for a setting: the NAME of a known agent, or NAME=PATH
// with the path of the agent's program. A command, if given, replaces the known
// command; the agent may then be unknown.
func Parse(setting string, command []string) (Program, error) {
	name, path, hasPath := strings.Cut(setting, "=")
	if !namePattern.MatchString(name) {
		return Program{}, fmt.Errorf("agent %q: want a name of lower-case letters, digits and -", name)
	}
	i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.Name == name })
	known := Kind{Name: name, Title: name}
	if i >= 0 {
		known = Kinds[i]
	}
	switch {
	case len(command) > 0 && hasPath:
		return Program{}, fmt.Errorf("agent %s: give either a path or a command", name)
	case len(command) > 0:
	case hasPath && i >= 0:
		command = append([]string{path}, known.Command[1:]...)
	case hasPath:
		command = []string{path}
	case i < 0:
		return Program{}, fmt.Errorf("agent %q is unknown; want one of %s, or its command behind --", name, strings.Join(names(), ", "))
	default:
		return known.Find()
	}
	found, err := absolute(command)
	if err != nil {
		return Program{}, fmt.Errorf("agent %s: %w", name, err)
	}
	return Program{Name: name, Title: known.Title, Command: found}, nil
}

func names() (list []string) {
	for _, k := range Kinds {
		list = append(list, k.Name)
	}
	return list
}

// absolute returns a command with absolute paths. For a script, it also looks up the
// interpreter, because a service does not have the PATH of a shell.
func absolute(command []string) ([]string, error) {
	path, err := exec.LookPath(command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	rest := command[1:]
	name, ok := interpreter(path)
	if !ok {
		return append([]string{path}, rest...), nil
	}
	with, err := exec.LookPath(name)
	if err != nil {
		return nil, fmt.Errorf("%s requires %s: %w", command[0], name, err)
	}
	if with, err = filepath.Abs(with); err != nil {
		return nil, err
	}
	return append([]string{with, path}, rest...), nil
}

// interpreter returns the program of a script that begins with #!/usr/bin/env.
func interpreter(path string) (string, bool) {
	file, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer file.Close()
	line, err := bufio.NewReaderSize(file, 256).ReadSlice('\n')
	if err != nil {
		return "", false
	}
	words := strings.Fields(strings.TrimPrefix(string(line), "#!"))
	if !strings.HasPrefix(string(line), "#!") || len(words) != 2 || filepath.Base(words[0]) != "env" {
		return "", false
	}
	return words[1], true
}

// Path returns the path of the program. For a script with an interpreter, it is the
// script's path.
func (p Program) Path() string {
	if len(p.Command) > 1 {
		if _, ok := interpreter(p.Command[1]); ok {
			return p.Command[1]
		}
	}
	return p.Command[0]
}
