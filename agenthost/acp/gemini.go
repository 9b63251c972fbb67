package acp

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Gemini CLI 0.61 keeps each conversation in files of its home directory, and damages
// them:
//
//   - A load adds a second file without messages. Each start of the program removes all
//     files of a conversation that has a file without messages.
//   - A new conversation has a file without messages until its first prompt.
//   - A load in the clock minute in which the conversation began empties the
//     conversation.
//
// This file removes such second files, rewrites a beginning that was removed, and waits
// for the next minute. It also detects prompts from the agent's own terminal, because
// Gemini CLI lists no conversations. It removes only files without messages whose
// conversation has another file.

// isGemini reports whether a program is Gemini CLI.
func isGemini(p Program) bool {
	return slices.ContainsFunc(append([]string{p.Name}, p.Command...), func(word string) bool {
		return strings.Contains(filepath.Base(word), "gemini")
	})
}

// geminiHome returns the directory with Gemini CLI's files, "" if there is none.
func geminiHome(environment []string) string {
	values := map[string]string{} // the last value of a variable counts
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		values[name] = value
	}
	for _, home := range []string{values["GEMINI_CLI_HOME"], values["HOME"], values["USERPROFILE"]} {
		if home != "" {
			return filepath.Join(home, ".gemini")
		}
	}
	return ""
}

// A geminiRecord is a line of a conversation's file. The first line has the
// conversation's id; messages have a type.
type geminiRecord struct {
	SessionID string `json:"sessionId"`
	Type      string `json:"type"`
}

// maxHeader bounds a file without messages, in bytes.
const maxHeader = 64 << 10

// geminiBegun is the form of the minute in a file's name, in UTC.
const geminiBegun = "2006-01-02T15-04"

// geminiShort is the part of a conversation's id in a file's name.
var geminiShort = regexp.MustCompile(`^[0-9A-Za-z]{8}`)

// geminiFiles returns the files of a conversation, or of all conversations if id is
// empty.
func geminiFiles(home, id string) []string {
	short := geminiShort.FindString(id)
	switch {
	case id == "":
		short = "*"
	case short == "":
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(home, "tmp", "*", "chats", "session-*-"+short+".jsonl")) // the pattern is well-formed
	return files
}

// sweepGemini removes the files without messages whose conversation has another file.
func sweepGemini(home string) {
	groups := map[string][]string{} // by directory and short id
	for _, file := range geminiFiles(home, "") {
		key := filepath.Join(filepath.Dir(file), file[strings.LastIndexByte(file, '-'):])
		groups[key] = append(groups[key], file)
	}
	for _, files := range groups {
		var empty, full []string
		for _, file := range files {
			switch id, messages := readGemini(file); {
			case len(files) == 1 || id == "":
			case messages:
				full = append(full, id)
			default:
				empty = append(empty, id+"\n"+file)
			}
		}
		for _, e := range empty {
			if id, file, _ := strings.Cut(e, "\n"); slices.Contains(full, id) {
				_ = os.Remove(file) // it may be gone
			}
		}
	}
}

// readGemini returns the conversation's id in a file, or "" if the file is unreadable,
// and whether the file has messages.
func readGemini(file string) (id string, messages bool) {
	f, err := os.Open(file)
	if err != nil {
		return "", false
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, maxHeader))
	if err != nil {
		return "", false
	}
	for line := range bytes.Lines(head) {
		var r geminiRecord
		if json.Unmarshal(line, &r) == nil {
			id = cmp.Or(id, r.SessionID)
			messages = messages || r.Type != ""
		}
	}
	return id, messages || len(head) == maxHeader
}

// A geminiKeeper protects the files of one conversation. Methods of a nil geminiKeeper do
// nothing.
type geminiKeeper struct {
	home, id string

	begun  string           // the file of a new conversation, until its first prompt
	header []byte           // content of begun
	read   map[string]int64 // known size of each file, in bytes; nil before the first prompt has ended
}

// keepGemini returns the keeper for a conversation of Gemini CLI, and nil for other
// agents.
func (a *Agent) keepGemini(id string) *geminiKeeper {
	if a.gemini == "" {
		return nil
	}
	return &geminiKeeper{home: a.gemini, id: id}
}

// awaitMinute waits until a load does not empty the conversation.
func (k *geminiKeeper) awaitMinute(ctx context.Context) error {
	if k == nil {
		return nil
	}
	select {
	case <-time.After(k.untilMinute(time.Now())):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// untilMinute returns the time until a load does not empty the conversation.
func (k *geminiKeeper) untilMinute(now time.Time) time.Duration {
	for _, file := range geminiFiles(k.home, k.id) {
		if strings.HasPrefix(filepath.Base(file), "session-"+now.UTC().Format(geminiBegun)) {
			return now.Truncate(time.Minute).Add(time.Minute).Sub(now)
		}
	}
	return 0
}

// keepBegun remembers the file of a new conversation.
func (k *geminiKeeper) keepBegun() {
	if k == nil {
		return
	}
	for _, file := range geminiFiles(k.home, k.id) {
		if id, messages := readGemini(file); id == k.id && !messages {
			k.begun = file
			k.header, _ = os.ReadFile(file) // without content, nothing is restored
		}
	}
}

// beforePrompt rewrites the beginning of a new conversation if another process has
// removed it. It reports whether the conversation has continued in another process.
func (k *geminiKeeper) beforePrompt() (elsewhere bool) {
	if k == nil {
		return false
	}
	if k.begun != "" && len(k.header) > 0 {
		if f, err := os.OpenFile(k.begun, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			_, err = f.Write(k.header)
			_ = errors.Join(err, f.Close()) // after an error, the prompt continues, and the next start loses the conversation
		}
	}
	k.begun = ""
	if k.read == nil {
		return false
	}
	for _, file := range geminiFiles(k.home, k.id) {
		if prompted(file, k.read[file]) {
			return true
		}
	}
	return false
}

// afterPrompt remembers the size of the files.
func (k *geminiKeeper) afterPrompt() {
	if k == nil {
		return
	}
	k.read = map[string]int64{}
	for _, file := range geminiFiles(k.home, k.id) {
		if info, err := os.Stat(file); err == nil {
			k.read[file] = info.Size()
		}
	}
}

// prompted reports whether a file has a person's message after an offset.
func prompted(file string, from int64) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return false
	}
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		var r geminiRecord
		if json.Unmarshal(line, &r) == nil && r.Type == "user" {
			return true
		}
		if err != nil {
			return false
		}
	}
}

// startAlone waits until this Agent starts no other Gemini CLI, because each start reads and
// removes files. The caller calls end after its own start. Other agents do not wait.
func (a *Agent) startAlone(ctx context.Context) (end func(), err error) {
	if a.gemini == "" {
		return func() {}, nil
	}
	select {
	case a.starting <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	sweepGemini(a.gemini)
	return func() {
		sweepGemini(a.gemini)
		<-a.starting
	}, nil
}
