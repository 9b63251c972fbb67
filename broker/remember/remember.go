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

// Subject returns the subject for a host's requests. Host may be *, for all hosts of a
// tenant.
func Subject(tenant, host string) string { return link.HostPrefix(tenant, host) + "ctl.remember" }

const (
	MaxContent = 256 << 10 // bytes of a record's content before sealing
	MaxRecords = 1024      // records of a host
	MaxHolders = 512       // holders in a request, and holders of a host's keys

	maxData    = MaxContent + 64
	maxRequest = 512 << 10
)

// ListID is the ID of the record which lists the sessions.
const ListID = "list"

// IDOf returns the ID of a session's record.
func IDOf(session string) string {
	sum := sha256.Sum256([]byte(session))
	return hex.EncodeToString(sum[:])
}

// IsID reports whether id is a valid record ID.
func IsID(id string) bool {
	if id == ListID {
		return true
	}
	sum, err := hex.DecodeString(id)
	return err == nil && len(sum) == sha256.Size && hex.EncodeToString(sum) == id
}

// A Record is one version of a session's state or of the list.
type Record struct {
	ID        string `json:"id"`
	Key       string `json:"key"`     // ID of the host's key
	Version   uint64 `json:"version"` // higher than in all earlier versions
	Time      int64  `json:"time"`    // when the host had this content, by the host's clock, in ms
	Data      []byte `json:"data"`    // encrypted content
	Signature []byte `json:"signature"`

	// Blind is set for sealed hosts: a relay then returns a session's record to any client
	// of the host that knows its ID.
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

func isKeyID(id string) bool {
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == keyIDSize
}

// An Op is what a request asks for.
type Op string

const (
	Put   Op = "put"   // store Record
	Get   Op = "get"   // return the record with ID
	Index Op = "index" // return the IDs of all records
	Drop  Op = "drop"  // remove the record with ID; "": all records
	Check Op = "check" // return which of Holders are revoked
)

// A Request is a request from a host-agent.
type Request struct {
	Instance string        `json:"instance"` // the host-agent's instance
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

// An Answer answers a Request. If Error is empty, the request has succeeded.
type Answer struct {
	Error   string   `json:"error,omitempty"`
	IDs     []string `json:"ids,omitempty"`     // answer to Index: the IDs
	Record  *Record  `json:"record,omitempty"`  // answer to Get; null: there is no record
	Removed []int    `json:"removed,omitempty"` // answer to Check: indices of the revoked Holders
}
