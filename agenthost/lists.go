package agenthost

import (
	"context"
	"net/url"
	"slices"
	"time"
)

// Conversations that began outside of the host, for example in the agent's own
// terminal interface, are listed as sessions. Their history stays with the agent
// until a client subscribes.

const (
	listPause   = 30 * time.Second // least time between two requests for the agents' lists
	listTimeout = time.Minute
	maxListed   = 200 // conversations of an agent
)

// startListsLocked asks the agents for their conversations, at most once in
// listPause.
func (ss *sessionTable) startListsLocked() {
	h := ss.host
	now := h.cfg.Now()
	if len(ss.providers) == 0 || now.Sub(ss.listedAt) < listPause {
		return
	}
	ss.listedAt = now
	for _, p := range ss.providers {
		lister, ok := p.agent.(Lister)
		if !ok || !p.info.Replays {
			continue
		}
		h.goLocked(func() {
			ctx, cancel := context.WithTimeout(h.ctx, listTimeout)
			defer cancel()
			past, err := lister.List(ctx, "")
			if err != nil {
				h.log.Info("conversations not listed by the agent", "agent", p.name, "error", err)
				return
			}
			ss.addPast(p, past)
		})
	}
}

// addPast adds sessions for the maxListed latest conversations in permitted
// folders.
func (ss *sessionTable) addPast(p *provider, past []Past) {
	h := ss.host
	past = slices.DeleteFunc(past, func(c Past) bool { return !h.resources.allows(c.Folder) })
	h.mu.Lock()
	defer h.mu.Unlock()
	known := map[string]bool{}
	for _, ch := range h.chats {
		if ch.seat.provider == p {
			known[ch.seat.id] = true
		}
	}
	slices.SortStableFunc(past, func(a, b Past) int { return b.Modified.Compare(a.Modified) })
	for _, c := range past[:min(len(past), maxListed)] {
		uri := p.name + ":/" + url.PathEscape(c.ID)
		if h.closed || c.ID == "" || known[c.ID] || ss.deletedLocked(uri) || ss.checkSessionURI(uri) != nil {
			continue
		}
		if _, ok := ss.get(uri); ok {
			continue
		}
		s := ss.addSessionLocked(p, uri, []string{fileURI(c.Folder)}, c.Modified)
		s.title = titleOf(c.Title)
		s.chat.seat.id, s.chat.seat.replay = c.ID, true
		ss.announceLocked(s)
	}
}

// replayLocked asks the agent for a history that the host does not have. Subscribers
// get it as chat/turnsLoaded.
func (ch *chat) replayLocked() {
	st := ch.seat
	if !st.replay || st.conv != nil || st.replaying {
		return
	}
	st.replaying = true
	h := ch.session.host
	h.goLocked(func() {
		ctx, cancel := context.WithTimeout(h.ctx, openTimeout)
		defer cancel()
		err := st.openAlone(ctx)
		h.mu.Lock()
		defer h.mu.Unlock()
		st.replaying = false
		if err != nil {
			h.log.Warn("history not loaded", "chat", ch.uri, "error", err)
		}
		st.leaveLocked()
	})
}

// readTime is how long a conversation that was opened for its history waits for a use. The agent's process takes as
// much memory as one that works.
const readTime = 10 * time.Minute

// leaveLocked closes the conversation after readTime, unless something uses it until then. The next prompt opens it again.
func (st *seat) leaveLocked() {
	h, conv := st.host, st.conv
	if conv == nil {
		return
	}
	h.afterLocked(readTime, func() {
		if st.conv != conv || st.used {
			return
		}
		select {
		case st.busy <- struct{}{}: // a prompt waits until the agent has ended
		default:
			return
		}
		st.conv = nil
		h.goLocked(func() {
			_ = conv.Close()
			<-st.busy
		})
	})
}
