"""The lengths of stored words, in characters, and other bounds of columns and of checks before any SQL."""

NAME_LENGTH = 255
QUEUE_LENGTH = 100
WORKER_LENGTH = 255
ACTOR_LENGTH = 255
TAG_KEY_LENGTH = 50
TAG_VALUE_LENGTH = 100
MARK_LENGTH = 100
KEY_LENGTH = 255
SCHEMA_LENGTH = 100

#: The last attempt number: a job that has had it is not claimed any more, as there is none to rise to.
LAST_ATTEMPT = 2**31 - 1

#: What the column of failures can count to.
MOST_FAILURES = 2**31 - 1

#: Tags that an enqueue, and that an attempt may give; and how many of a job's are kept.
MOST_TAGS, KEPT_TAGS = 50, 100

PROGRESS_MESSAGE_LENGTH = 200
PROGRESS_MOST = 10**15

#: Bytes of JSON.
HEADERS_SIZE = 4 * 1024
