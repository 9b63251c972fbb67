package agenthost

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A Chat gives an agent access to a chat at the host. Its methods may be called at any
// time from any goroutine, and do not wait for clients. After the chat has ended, they
// do not change it, and serve no files.
type Chat struct{ seat *seat }

// update calls f with the host's lock held, unless the chat has ended.
func (c *Chat) update(f func(ch *chat, h *Host)) {
	ch, h := c.seat.chat, c.seat.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed && h.chats[ch.uri] == ch {
		f(ch, h)
	}
}

// URI returns the chat's channel.
func (c *Chat) URI() string { return c.seat.chat.uri }

// SetTitle sets the session's title, unless a person has set one or this is not
// the session's default chat.
func (c *Chat) SetTitle(title string) {
	c.update(func(ch *chat, h *Host) {
		s := ch.session
		if title = titleOf(title); title == "" || s.named || title == s.title || ch != s.chat {
			return
		}
		s.setTitleLocked(title)
		s.saveLocked()
		h.emitLocked(s.uri, titleAction{"session/titleChanged", title})
	})
}

// SetOptions replaces the conversation's options.
func (c *Chat) SetOptions(options []Option) {
	c.update(func(ch *chat, h *Host) {
		st := c.seat
		st.options = h.sessions.permitted(options)
		for _, o := range options {
			if _, ok := st.chosen[o.ID]; ok && o.Value != nil && st.conv != nil { // before, the agent has not got all chosen values
				st.chosen[o.ID] = o.Value
			}
		}
		ch.session.saveLocked()
		if ch == ch.session.chat {
			st.provider.learnOptionsLocked(h, st.options)
			ch.session.configChangedLocked()
		}
	})
}

// SetCommands replaces the conversation's slash commands.
func (c *Chat) SetCommands(commands []Command) {
	c.update(func(*chat, *Host) { c.seat.commands = commands })
}

// Past adds a turn to the history. The agent calls it while Open runs with
// [Start.Replay]. It must call [Turn.End] before it adds the next turn.
func (c *Chat) Past(prompt Prompt, at time.Time) *Turn {
	ch, h := c.seat.chat, c.seat.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if at.IsZero() {
		at = ch.session.modified
	}
	return newTurn(ch, &turn{ID: h.cfg.NewID(), StartedAt: timestamp(at), Message: messageOf(prompt), ResponseParts: []any{}, started: at}, true)
}

// Begin begins a turn without a prompt. The caller ends it with [Turn.End]; a client's
// prompt also ends it. Begin returns [ErrEnded] during another turn and after the
// chat's end.
func (c *Chat) Begin() (*Turn, error) {
	var begun *Turn
	c.update(func(ch *chat, h *Host) {
		if ch.active != nil {
			return
		}
		message := map[string]any{"text": "The agent goes on by itself.", "origin": plainOrigin{"systemNotification"}}
		a := turnStarted(h, encode(message), "")
		ch.applyLocked(a, own(ch.uri, a))
		begun = newTurn(ch, ch.active, false)
		begun.unasked, begun.prompted = true, true // the agent works already
		c.seat.turn, c.seat.used = begun, true
	})
	if begun == nil {
		return nil, ErrEnded
	}
	return begun, nil
}

// Lost reports that the conversation has ended without a call of Close, for example
// because the agent's process has ended. At the next prompt, the host opens the
// conversation again.
func (c *Chat) Lost(err error) {
	c.update(func(ch *chat, h *Host) {
		if c.seat.conv != nil {
			h.log.Warn("conversation lost", "chat", ch.uri, "error", err)
		}
		c.seat.conv, c.seat.lost = nil, err
	})
}

// OpenTerminal runs a command in a terminal that clients can see, in or below one of
// the chat's folders.
func (c *Chat) OpenTerminal(spec ProcessSpec) (term *AgentTerminal, err error) {
	folder, err := c.within(spec.Folder)
	if err != nil {
		return nil, err
	}
	err = ErrEnded
	c.update(func(ch *chat, h *Host) { term, err = h.terminals.openAgentTerminalLocked(ch, spec, folder) })
	return term, err
}

// within returns a folder if it is in or below the chat's folders. For an empty name,
// it returns the chat's first folder.
func (c *Chat) within(folder string) (string, error) {
	folders, err := c.folders()
	if err != nil {
		return "", err
	}
	if folder == "" {
		return folders[0], nil
	}
	if slices.ContainsFunc(folders, func(root string) bool { return isBelow(root, folder) }) {
		return folder, nil
	}
	return "", fmt.Errorf("%s is not in the session's folders: %w", folder, fs.ErrPermission)
}

// folders returns the chat's folders, at least one, and then the names to which their symbolic links
// lead. It returns [ErrEnded] after the chat's end.
func (c *Chat) folders() (list []string, err error) {
	err = ErrEnded
	c.update(func(*chat, *Host) {
		start := c.seat.startOfLocked()
		list, err = append([]string{start.Folder}, start.Folders...), nil
	})
	for _, folder := range list {
		if name, err := filepath.EvalSymlinks(folder); err == nil && name != folder {
			list = append(list, name)
		}
	}
	return list, err
}

// maxAgentFile bounds a file that the host reads or writes for an agent.
const maxAgentFile = 32 << 20

// ReadFile reads a text file below the chat's folders. It does not follow symbolic
// links out of them.
func (c *Chat) ReadFile(path string) (text string, err error) {
	err = c.inRoot(path, func(root *os.Root, name string) error {
		info, err := root.Stat(name)
		if err != nil {
			return err
		}
		if info.Size() > maxAgentFile || !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a file of at most %d bytes", path, maxAgentFile)
		}
		data, err := root.ReadFile(name)
		text = string(data)
		return err
	})
	return text, err
}

// WriteFile writes a text file below the chat's folders, and makes the directories
// above it. It does not follow symbolic links out of them.
func (c *Chat) WriteFile(path, text string) error {
	if len(text) > maxAgentFile {
		return fmt.Errorf("%s would have more than %d bytes", path, maxAgentFile)
	}
	return c.inRoot(path, func(root *os.Root, name string) error {
		if err := root.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			return err
		}
		return root.WriteFile(name, []byte(text), 0o666)
	})
}

// inRoot calls f with the folder that contains a path, and the path's name inside that
// folder.
func (c *Chat) inRoot(path string, f func(root *os.Root, name string) error) error {
	folders, err := c.folders()
	if err != nil {
		return err
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(folders[0], path)
	}
	for _, folder := range folders {
		name, err := filepath.Rel(folder, filepath.Clean(path))
		if err != nil || !filepath.IsLocal(name) {
			continue
		}
		root, err := os.OpenRoot(folder)
		if err != nil {
			return err
		}
		return errors.Join(f(root, name), root.Close())
	}
	return fmt.Errorf("%s is not in %s: %w", path, strings.Join(folders, ", "), fs.ErrPermission)
}
