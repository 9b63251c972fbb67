package agenthost

import (
	"encoding/json"
	"strconv"

	"ahprelay/ahp"
)

// reverseCalls holds the host's open requests to clients. They are numbered 1, 2, 3…
// over all clients. The zero value is ready; the host's lock guards it.
type reverseCalls struct {
	last    int64
	pending map[int64]*reverseCall
}

type reverseCall struct {
	id    int64
	conn  *conn // the only connection that may answer
	reply chan reverseReply
}

type reverseReply struct {
	result json.RawMessage
	err    error
}

// ask sends a request to a client's newest connection and waits for the answer. It
// stops waiting when the connection that needs the answer ends.
func (h *core) ask(on *conn, clientID, method string, params any) (json.RawMessage, error) {
	call, err := h.startCall(clientID, method, params)
	if err != nil {
		return nil, err
	}
	select {
	case reply := <-call.reply:
		return reply.result, reply.err
	case <-on.done:
		h.mu.Lock()
		delete(h.reverse.pending, call.id)
		h.mu.Unlock()
		return nil, fail(ahp.CodeInternalError, "The asking connection has ended")
	}
}

func (h *core) startCall(clientID, method string, params any) (*reverseCall, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	cl := h.clients[clientID]
	if cl == nil || cl.newest() == nil {
		return nil, fail(ahp.CodeInternalError, "No connection for authority: %s", clientID)
	}
	r := &h.reverse
	r.last++
	call := &reverseCall{id: r.last, conn: cl.newest(), reply: make(chan reverseReply, 1)}
	if r.pending == nil {
		r.pending = make(map[int64]*reverseCall)
	}
	r.pending[r.last] = call
	call.conn.queueLocked(requestFrame(r.last, method, params))
	return call, nil
}

// answerLocked handles a client's response. It ignores a response to an unknown
// request.
func (r *reverseCalls) answerLocked(c *conn, msg message) {
	id, err := strconv.ParseInt(string(msg["id"]), 10, 64)
	call := r.pending[id]
	if err != nil || call == nil || call.conn != c {
		return
	}
	delete(r.pending, id)
	reply := reverseReply{result: msg["result"]}
	if raw := msg["error"]; raw != nil {
		e := &rpcError{Code: ahp.CodeInternalError}
		if json.Unmarshal(raw, e) != nil {
			e.Message = "The client's error is malformed"
		}
		reply.err = e
	}
	call.reply <- reply
}

// dropLocked fails the open requests on a connection that has ended.
func (r *reverseCalls) dropLocked(c *conn) {
	for id, call := range r.pending {
		if call.conn == c {
			delete(r.pending, id)
			call.reply <- reverseReply{err: fail(ahp.CodeInternalError, "Client disconnected")}
		}
	}
}

// connectDevContainer answers vscode/devContainers/connect: it asks the client to
// trust the folder, and then reports that there is no container.
func (h *Host) connectDevContainer(c *conn, raw json.RawMessage) (any, error) {
	params, err := decodeParams[struct {
		WorkspaceFolder string `json:"workspaceFolder"`
	}](raw)
	if err != nil {
		return nil, err
	}
	result, err := h.ask(c, c.client.id, "vscode/requestWorkspaceTrust", struct {
		Workspace string `json:"workspace"`
	}{"file://" + params.WorkspaceFolder})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Trusted bool `json:"trusted"`
	}
	if json.Unmarshal(result, &answer) != nil || !answer.Trusted {
		return nil, fail(ahp.CodePermissionDenied, "Workspace trust is required to start a Dev Container")
	}
	return nil, fail(ahp.CodeInternalError, "No Dev Containers on this host")
}
