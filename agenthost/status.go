package agenthost

import "time"

// The status of a session or chat: one activity and flags.
const (
	statusIdle        = 1
	statusError       = 2
	statusInProgress  = 8
	statusInputNeeded = 24
	statusRead        = 32
	statusArchived    = 64

	statusFlags = statusRead | statusArchived
)

// timestamp formats a time for AHP: ISO 8601 in UTC, with milliseconds.
func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func setFlag(status, flag int, on bool) int {
	if on {
		return status | flag
	}
	return status &^ flag
}
