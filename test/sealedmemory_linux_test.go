package test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/hostagent/remembering"
	"ahprelay/test/stack"
)

// A dump is a process's memory: each region that the process may write.
type dump [][]byte

// dumpMemory stops a process for as long as it reads its memory. Regions that the process
// cannot write have its program only, here with this file's texts.
func dumpMemory(t *testing.T, pid int) (d dump) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var from, to uint64
		var mode string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &mode); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(mode, "rw") {
			continue
		}
		d = append(d, usedPages(mem, int64(from), int64(to))...)
	}
	return d
}

// usedPages reads a region without its empty pages.
func usedPages(mem io.ReaderAt, from, to int64) (d dump) {
	const page = 4 << 10
	empty := make([]byte, page)
	chunk := make([]byte, 1<<20)
	var used []byte
	for ; from < to; from += int64(len(chunk)) {
		part := chunk[:min(int64(len(chunk)), to-from)]
		n, _ := mem.ReadAt(part, from) // a device's region cannot be read
		for at := 0; at < n; at += page {
			if p := part[at:min(at+page, n)]; !bytes.Equal(p, empty[:len(p)]) {
				used = append(used, p...)
			} else if len(used) > 0 {
				d, used = append(d, used), nil
			}
		}
	}
	if len(used) > 0 {
		d = append(d, used)
	}
	return d
}

// size returns its length in bytes.
func (d dump) size() (n int) {
	for _, region := range d {
		n += len(region)
	}
	return n
}

// A piece is 16 bytes from a text.
type piece [16]byte

// piecesOf returns all pieces.
func piecesOf(texts []string) map[piece]bool {
	all := map[piece]bool{}
	for _, text := range texts {
		for i := range len(text) - 15 {
			all[piece([]byte(text[i:]))] = true
		}
	}
	return all
}

// finds returns those pieces that the dump has. The race detector would need a
// minute for the loop, which no other goroutine shares.
//
//go:norace
func (d dump) finds(pieces map[piece]bool) map[piece]bool {
	var begins [1 << 16]bool // by the first two bytes
	for p := range pieces {
		begins[int(p[0])<<8|int(p[1])] = true
	}
	list := map[piece]bool{}
	for _, region := range d {
		for i := range max(len(region)-15, 0) {
			if begins[int(region[i])<<8|int(region[i+1])] {
				if p := piece(region[i:]); pieces[p] {
					list[p] = true
				}
			}
		}
	}
	return list
}

// startApart starts a relay in a process of its own, and a sealed or unsealed host at it.
// before is called between the two.
func startApart(t *testing.T, upstream string, seals bool, before func(*relayProcess)) (*relayProcess, *sealedHost, *stack.Tap) {
	t.Helper()
	p := startRelayProcess(t, gateway.RelayConfig{DataDir: t.TempDir(), Listen: "127.0.0.1:0"})
	before(p)
	tap, err := stack.NewTap(upstream)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tap.Close)
	token, err := p.keys.Tokens().IssueHost(auth.Enrolment{Tenant: stack.Tenant, Host: stack.Host, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "ahp") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := hostagent.Config{
		Relays: []string{p.URL}, Token: func() (string, error) { return token, nil }, Log: slog.New(slog.DiscardHandler),
		StateDir: t.TempDir(), Control: filepath.Join(dir, "control.sock"), Notify: hostagent.NotifyAll, Remember: remembering.Turns,
	}
	cfg.Upstream.URL = tap.URL()
	if seals {
		cfg.Sealed = &hostagent.Sealing{}
	}
	agent, err := hostagent.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	life, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = agent.Run(life) })
	t.Cleanup(func() { end(); running.Wait() })
	p.await(t, "online")
	if !seals {
		return p, nil, tap
	}
	h := &sealedHost{t: t, url: p.URL, control: hostagent.Control{Path: cfg.Control}, issue: func(change func(*auth.Client)) (string, error) {
		c := auth.Client{Tenant: stack.Tenant, Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour)}
		if change != nil {
			change(&c)
		}
		return p.keys.Tokens().IssueClient(c)
	}}
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	return p, h.controlled(ctx), tap
}

// TestMemoryOfTheRelayHasNothing dumps a relay's memory before and after clients work at a
// host, and reads its files and log. At a sealed host, no 16 bytes from a message's texts
// have come there; at an unsealed host, the dump finds them.
func TestMemoryOfTheRelayHasNothing(t *testing.T) {
	t.Parallel()
	for _, seals := range []bool{true, false} {
		folder, err := os.MkdirTemp("", "folder-of-the-agent")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(folder) })
		host := upstream(t, folder)
		var own dump // the relay's own words are also in messages
		p, h, tap := startApart(t, host.url, seals, func(p *relayProcess) { own = dumpMemory(t, p.cmd.Process.Pid) })
		dial := dialer(p.dial)
		if seals {
			h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
			dial = h.throughConnect(h.relays)
		}
		secrets := secretTurn(t, dial)
		for i, f := range readFlows(t) {
			if f.name == "turns" || f.name == "permission" {
				play(t, f, dial, host.vars(f.name, i))
			}
		}
		for _, conn := range tap.Conns() {
			secrets = append(secrets, secretsOf(slices.Concat(conn.ToHost(), conn.ToClient()))...)
		}
		secrets = slices.DeleteFunc(secrets, func(s string) bool { return strings.HasPrefix(s, "2026-") }) // times
		pieces := piecesOf(secrets)
		for known := range own.finds(pieces) {
			delete(pieces, known)
		}
		for _, text := range []string{"A secret title of the session", "gho_a-secret-token-of-the-agent", "a-secret-file-name.txt"} {
			if !pieces[piece([]byte(text))] {
				t.Fatalf("%q is no secret: the relay had it before", text)
			}
		}
		log, err := os.ReadFile(p.log)
		if err != nil {
			t.Fatal(err)
		}
		now := dumpMemory(t, p.cmd.Process.Pid)
		for place, data := range map[string]dump{"memory": now, "files": {filesIn(t, p.dir)}, "log": {log}} {
			list := data.finds(pieces)
			t.Logf("sealed %v, %s: %d bytes, %d of %d pieces", seals, place, data.size(), len(list), len(pieces))
			switch {
			case data.size() < 500 || place == "memory" && data.size() < 1<<20:
				t.Errorf("sealed %v: only %d bytes in %s", seals, data.size(), place)
			case seals && len(list) > 0:
				t.Errorf("%s of a relay with a sealed host: %q", place, some(list))
			case !seals && place == "memory" && len(list) < len(pieces)/2:
				t.Errorf("the dump finds only %d of %d pieces of an unsealed host", len(list), len(pieces))
			}
		}
	}
}

// some returns a few pieces, as texts.
func some(pieces map[piece]bool) (list []string) {
	for p := range pieces {
		if list = append(list, string(p[:])); len(list) == 20 {
			break
		}
	}
	slices.Sort(list)
	return list
}
