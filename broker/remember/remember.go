package remember

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"
)

// Subject returns the subject for a host's requests; host may be *, for all hosts in a
// tenant.
func Subject(tenant, host string) string { return link.HostPrefix(tenant, host) + "ctl.remember" }

// Bounds.
const (
	MaxContent = 256 << 10 // bytes of a record's content before sealing
	MaxRecords = 1024      // of a host
	MaxHolders = 512       // in a request, and of a host's keys

	maxData    = MaxContent + 64
	maxRequest = 512 << 10
)

// ListID is the ID of the record with the list of sessions.
const ListID = "list"

// IDOf returns the ID of a session's record.
func IDOf(session string) string {
	sum := sha256.Sum256([]byte(session))
	return hex.EncodeToString(sum[:])
}

// IsID reports whether id is the ID of a record.
func IsID(id string) bool {
	if id == ListID {
		return true
	}
	sum, err := hex.DecodeString(id)
	return err == nil && len(sum) == sha256.Size && hex.EncodeToString(sum) == id
}

// A Record is a version of a session or of the list.
type Record struct {
	ID        string `json:"id"`
	Key       string `json:"key"`     // ID of the host's key
	Version   uint64 `json:"version"` // increases
	Time      int64  `json:"time"`    // of the content, by the host's clock, in ms
	Data      []byte `json:"data"`    // sealed
	Signature []byte `json:"signature"`

	// Blind is set for sealed hosts: relays give the record to requests for its ID.
	Blind bool `json:"blind,omitempty"`
}

// Check rejects a malformed record.
func (r *Record) Check() error {
	switch {
	case !IsID(r.ID):
		return fmt.Errorf("record has a bad id %.70q", r.ID)
	case !isKeyID(r.Key):
		return fmt.Errorf("record has a bad key id %.70q", r.Key)
	case r.Version == 0 || r.Version>>53 != 0: // exact in JavaScript
		return fmt.Errorf("record has version %d; want 1 to 2^53-1", r.Version)
	case len(r.Data) == 0 || len(r.Data) > maxData:
		return fmt.Errorf("record has %d bytes; want 1 to %d", len(r.Data), maxData)
	case len(r.Signature) != signatureSize:
		return fmt.Errorf("record has a signature of %d bytes; want %d", len(r.Signature), signatureSize)
	}
	return nil
}

// isKeyID reports whether id is the ID of a host's key.
func isKeyID(id string) bool {
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == keyIDSize
}

// An Op is the operation of a request.
type Op string

// The requests of host-agents.
const (
	Put   Op = "put"   // store Record
	Get   Op = "get"   // return the record with ID
	Index Op = "index" // return the IDs of all records
	Drop  Op = "drop"  // remove the record with ID; "": all records
	Check Op = "check" // return the holders whose tokens are revoked
)

// A Request is a host-agent's request.
type Request struct {
	Instance string        `json:"instance"` // of the host-agent
	Op       Op            `json:"op"`
	ID       string        `json:"id,omitempty"`
	Record   *Record       `json:"record,omitempty"`
	Holders  []auth.Holder `json:"holders,omitempty"`
}

// ReadRequest decodes and checks a request. Each operation has its branch.
func ReadRequest(data []byte) (r Request, err error) {
	if len(data) > maxRequest {
		return r, fmt.Errorf("request of %d bytes; want at most %d", len(data), maxRequest)
	}
	if json.Unmarshal(data, &r) != nil {
		return r, errors.New("request: invalid JSON")
	}
	if err := ahp.CheckName("instance", r.Instance); err != nil {
		return r, err
	}
	switch {
	case r.Op == Put && r.Record == nil:
		return r, errors.New("put without a record")
	case r.Op == Put:
		return r, r.Record.Check()
	case r.Op == Get && !IsID(r.ID), r.Op == Drop && r.ID != "" && !IsID(r.ID):
		return r, fmt.Errorf("%s of a bad id %.70q", r.Op, r.ID)
	case r.Op == Check && len(r.Holders) > MaxHolders:
		return r, fmt.Errorf("check of %d holders; want at most %d", len(r.Holders), MaxHolders)
	case r.Op != Get && r.Op != Index && r.Op != Drop && r.Op != Check:
		return r, fmt.Errorf("unknown request %.20q", r.Op)
	}
	return r, nil
}

// An Answer answers a Request. Without an Error, the request is done.
type Answer struct {
	Error   string   `json:"error,omitempty"`
	IDs     []string `json:"ids,omitempty"`     // of Index
	Record  *Record  `json:"record,omitempty"`  // of Get; null: there is none
	Removed []int    `json:"removed,omitempty"` // of Check: indices of revoked holders
}
