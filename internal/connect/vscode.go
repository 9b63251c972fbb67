package connect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tailscale/hujson"

	"ahprelay/internal/atomicfile"
)

// Settings of VS Code.
const (
	vscodeHosts   = "chat.remoteAgentHosts"
	vscodeEnabled = "chat.remoteAgentHostsEnabled"
	vscodeIgnored = "settingsSync.ignoredSettings"
)

// A vscodeHost is an entry of the setting chat.remoteAgentHosts.
type vscodeHost struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Token   string `json:"connectionToken"`
}

// isOurs reports whether this program has created the entry.
func (h *vscodeHost) isOurs() bool { return strings.HasPrefix(h.Token, localPrefix) }

// VSCode adds hosts to VS Code's settings file, and removes them. It changes nothing but the
// settings above. Settings Sync is told to skip the setting with the hosts, because it
// contains local tokens.
type VSCode struct {
	File   string // settings.json
	Listen string // address of the endpoint
	Tokens *Tokens
}

// tokenName returns the name of the local token for a host. Each host needs its own
// token, because VS Code cannot set a path.
func tokenName(host string) string { return "vscode " + host }

// Add writes entries for hosts. It does not replace entries with these names which the
// user has created.
func (v *VSCode) Add(hosts []string) error {
	return v.edit(func(list []json.RawMessage) ([]json.RawMessage, error) {
		for _, host := range hosts {
			token, err := v.Tokens.Make(tokenName(host), []string{host}, "")
			if err != nil {
				return nil, err
			}
			entry, err := json.Marshal(vscodeHost{host, "ws://" + v.Listen, token.Token})
			if err != nil {
				return nil, err
			}
			list = append(without(list, host), entry)
		}
		return list, nil
	})
}

// Remove removes the entries of hosts, or of all hosts, and revokes their tokens.
func (v *VSCode) Remove(hosts []string) error {
	var gone []string
	err := v.edit(func(list []json.RawMessage) ([]json.RawMessage, error) {
		if len(hosts) == 0 {
			for _, raw := range list {
				var h vscodeHost
				if json.Unmarshal(raw, &h) == nil && h.isOurs() {
					hosts = append(hosts, h.Name)
				}
			}
		}
		for _, host := range hosts {
			left := without(list, host)
			if len(left) == len(list) {
				return nil, fmt.Errorf("%s has no entry for %s from ahp-connect vscode", v.File, host)
			}
			list, gone = left, append(gone, host)
		}
		return list, nil
	})
	if err != nil {
		return err
	}
	for _, host := range gone {
		err = errors.Join(err, v.Tokens.Revoke(tokenName(host)))
	}
	return err
}

// without returns the list without this program's entry for a host.
func without(list []json.RawMessage, host string) []json.RawMessage {
	return slices.DeleteFunc(slices.Clone(list), func(raw json.RawMessage) bool {
		var h vscodeHost
		return json.Unmarshal(raw, &h) == nil && h.Name == host && h.isOurs()
	})
}

// edit changes the list of hosts in the settings.
func (v *VSCode) edit(change func([]json.RawMessage) ([]json.RawMessage, error)) error {
	file := v.File
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real // so that a symbolic link remains
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Dir(file)); err != nil {
			return fmt.Errorf("%s: VS Code has no settings there: name the file with --settings", filepath.Dir(file))
		}
	} else if err != nil {
		return err
	}
	if len(strings.TrimSpace(string(text))) == 0 {
		text = []byte("{}\n")
	}
	settings, err := hujson.Parse(text)
	if err != nil {
		return fmt.Errorf("%s is not readable: %w", file, err)
	}
	plain := settings.Clone()
	plain.Standardize()
	var now map[string]json.RawMessage
	if err := json.Unmarshal(plain.Pack(), &now); err != nil {
		return fmt.Errorf("%s is not readable: %w", file, err)
	}
	var before, ignored []json.RawMessage
	for name, list := range map[string]*[]json.RawMessage{vscodeHosts: &before, vscodeIgnored: &ignored} {
		if now[name] != nil && json.Unmarshal(now[name], list) != nil {
			return fmt.Errorf("%s: %s is no list: correct it first", file, name)
		}
	}
	after, err := change(before)
	if err != nil {
		return err
	}
	patch, err := patchOf(now, after, ignored)
	if err != nil || patch == nil {
		return err
	}
	if err := settings.Patch(patch); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return atomicfile.Replace(file, settings.Pack(), 0o600)
}

// An operation is a step of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// patchOf returns the JSON patch which changes the list of hosts in the settings, or nil if it is empty and stays so.
func patchOf(now map[string]json.RawMessage, hosts, ignored []json.RawMessage) ([]byte, error) {
	name, err := json.Marshal(vscodeHosts)
	if err != nil {
		return nil, err
	}
	isName := func(raw json.RawMessage) bool { return string(raw) == string(name) }
	var steps []operation
	set := func(name string, value any) {
		op := "add"
		if now[name] != nil {
			op = "replace"
		}
		steps = append(steps, operation{op, "/" + name, value})
	}
	if len(hosts) > 0 {
		if !slices.ContainsFunc(ignored, isName) {
			set(vscodeIgnored, append(ignored, name))
		}
		set(vscodeEnabled, true)
		set(vscodeHosts, hosts)
		return json.Marshal(steps)
	}
	if left := slices.DeleteFunc(ignored, isName); len(left) > 0 {
		set(vscodeIgnored, left)
	} else if now[vscodeIgnored] != nil {
		steps = append(steps, operation{Op: "remove", Path: "/" + vscodeIgnored})
	}
	for _, name := range []string{vscodeHosts, vscodeEnabled} {
		if now[name] != nil {
			steps = append(steps, operation{Op: "remove", Path: "/" + name})
		}
	}
	if steps == nil {
		return nil, nil
	}
	return json.Marshal(steps)
}
