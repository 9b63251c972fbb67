package acpagent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// chatFiles imitates how Gemini CLI 0.61 stores conversations in files, with its
// faults. home is the home directory, which is also the agent's store. Methods of a nil
// chatFiles do nothing.
type chatFiles struct{ home string }

func (c *chatFiles) file(id, minute string) string {
	return filepath.Join(c.home, ".gemini", "tmp", "project", "chats", "session-"+minute+"-"+id[:min(len(id), 8)]+".jsonl")
}

func (c *chatFiles) files(id string) []string {
	if id == "" {
		id = "*"
	}
	files, _ := filepath.Glob(c.file(id, "*"))
	return files
}

// add appends a line to a file.
func (c *chatFiles) add(file, line string) {
	_ = os.MkdirAll(filepath.Dir(file), 0o700)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, line)
	}
	if err != nil {
		panic(err)
	}
	_ = f.Close()
}

// The minutes in the names of files: begunMinute for a new conversation, loadedMinute
// for a conversation that was loaded.
const (
	begunMinute  = "2026-01-01T00-00"
	loadedMinute = "2026-01-01T00-01"
)

// begin creates a conversation's file with a beginning and without messages.
func (c *chatFiles) begin(id, minute string) {
	if c == nil {
		return
	}
	file := c.file(id, minute)
	c.add(file, fmt.Sprintf(`{"sessionId":%q,"projectHash":"x","kind":"main"}`, id))
	c.add(file, `{"$set":{"messages":[]}}`)
}

// said adds a message to the oldest file of a conversation.
func (c *chatFiles) said(id string) {
	if c == nil {
		return
	}
	files := c.files(id)
	if len(files) == 0 { // Gemini CLI then writes a file without a beginning
		files = []string{c.file(id, begunMinute)}
	}
	c.add(files[0], `{"id":"m","type":"user","content":[{"text":"words"}]}`)
}

// whole reports whether a file has a beginning and messages.
func (c *chatFiles) whole(file string) bool {
	text, _ := os.ReadFile(file)
	begun, messages := false, 0
	for line := range strings.Lines(string(text)) {
		var r struct {
			SessionID string `json:"sessionId"`
			Type      string `json:"type"`
			Set       *struct{}
		}
		_ = json.Unmarshal([]byte(line), &r)
		begun = begun || r.SessionID != ""
		if messages++; r.Type == "" {
			messages = 0 // the line {"$set":{"messages":[]}} removes all messages
		}
	}
	return begun && messages > 0
}

// clean does what Gemini CLI does when it starts: if a conversation has a file without
// messages, clean removes all files of that conversation.
func (c *chatFiles) clean() {
	for _, file := range c.files("") {
		if c.whole(file) {
			continue
		}
		for _, same := range c.files(strings.TrimSuffix(file[strings.LastIndexByte(file, '-')+1:], ".jsonl")) {
			_ = os.Remove(same)
		}
	}
}

// load begins another file for a conversation, as Gemini CLI does. It reports whether
// the conversation has a file with messages.
func (c *chatFiles) load(id string) bool {
	c.begin(id, loadedMinute)
	for _, file := range c.files(id) {
		if c.whole(file) {
			return true
		}
	}
	return false
}
