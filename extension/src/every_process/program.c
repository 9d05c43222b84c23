/*-------------------------------------------------------------------------
 *
 * program.c
 *		The dispatcher's program: where it is, of which build it is, and the
 *		one that was installed when the server started.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/string.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "dispatcher_link.h"
#include "majors.h"
#include "parameters.h"
#include "pg_process.h"
#include "program.h"

/* ----------------------------------------------------------------
 *		The program that is started.
 *
 * Library and dispatcher share memory, so a dispatcher of another layout
 * cannot serve this server.  While a server runs, another build may be
 * installed: a package's upgrade, `make install`.  The library that runs stays
 * the one that the postmaster has mapped.  So the postmaster opens the program
 * as well, when it loads the library, and a dispatcher that has to be replaced
 * is started from the installed file if that has the library's layout, and
 * from the postmaster's descriptor if not.
 *
 * A file that is replaced by another of its name (rename, unlink) lives as
 * long as the descriptor.  One that is overwritten in place does not; the
 * kernel refuses that while it runs (ETXTBSY).  So its notes are read again
 * before it is used.
 *
 * The descriptor closes on exec: no program that the server starts has it.
 * Processes that the postmaster forks have it, as the CONTROL memory's.
 *
 * Two notes of the ELF file say what it is: pg_baton's, with layout and
 * version (dispatcher/src/main.rs), and the linker's build ID.  A program
 * without them, such as a script that starts the dispatcher, is of unknown
 * layout: it is started, never kept, and the dispatcher itself checks.
 */

/*
 * The directory of `make install`, tried if the PATH does not have the
 * program.
 */
#define LAST_RESORT "/usr/local/bin"

/* pg_baton's note: a layout version, and a version with its NUL. */
#define NOTE_NAME "pg_baton"
#define NOTE_TYPE 1

/* The largest part of a file with notes that is read, and number of parts. */
#define NOTES_SIZE 4096
#define SEGMENTS 64

static int	kept_fd = -1;
static char kept_path[MAXPGPATH];

static bool
is_program(const char *path)
{
	struct stat status;

	return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

/* Full path of the installed program; false if it is not found. */
static bool
find_program(char *path)
{
	const char *name = baton_dispatcher_program;
	const char *at;
	char		directory[MAXPGPATH];

	if (strchr(name, '/') != NULL)
	{
		strlcpy(path, name, MAXPGPATH);
		return is_program(path);
	}

	/* beside the server's own program */
	strlcpy(directory, my_exec_path, sizeof(directory));
	get_parent_directory(directory);
	join_path_components(path, directory, name);
	if (is_program(path))
		return true;

	for (at = getenv("PATH"); at != NULL && *at != '\0';)
	{
		Size		length = strcspn(at, ":");

		if (length > 0 && length < sizeof(directory))
		{
			memcpy(directory, at, length);
			directory[length] = '\0';
			join_path_components(path, directory, name);
			if (is_program(path))
				return true;
		}
		at += length;
		if (*at == ':')
			at++;
	}

	join_path_components(path, LAST_RESORT, name);
	return is_program(path);
}

/* Takes what a part of the file with notes says. */
static void
read_notes(const char *notes, Size size, BatonProgramFile *file)
{
	Size		at = 0;

	while (size - at >= sizeof(ElfW(Nhdr)))
	{
		ElfW(Nhdr) note;
		const char *name;
		const char *content;
		Size		left;

		memcpy(&note, notes + at, sizeof(note));
		at += sizeof(note);
		left = size - at;
		if (note.n_namesz > left || note.n_descsz > left ||
			TYPEALIGN(4, (Size) note.n_namesz) + TYPEALIGN(4, (Size) note.n_descsz) > left)
			return;
		name = notes + at;
		content = name + TYPEALIGN(4, (Size) note.n_namesz);
		at += TYPEALIGN(4, (Size) note.n_namesz) + TYPEALIGN(4, (Size) note.n_descsz);

		if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof("GNU") &&
			memcmp(name, "GNU", sizeof("GNU")) == 0)
		{
			uint32		count = Min(note.n_descsz, (sizeof(file->build) - 1) / 2);

			for (uint32 i = 0; i < count; i++)
				snprintf((char *) file->build + 2 * i, 3, "%02x", (unsigned char) content[i]);
		}
		else if (note.n_type == NOTE_TYPE && note.n_namesz == sizeof(NOTE_NAME) &&
				 memcmp(name, NOTE_NAME, sizeof(NOTE_NAME)) == 0 &&
				 note.n_descsz > sizeof(uint32))
		{
			memcpy(&file->layout_version, content, sizeof(uint32));
			strlcpy((char *) file->version, content + sizeof(uint32),
					Min(sizeof(file->version), note.n_descsz - sizeof(uint32)));
		}
	}
}

/* What an ELF file is.  Of any other file nothing but which one it is. */
static void
inspect(int fd, const struct stat *status, BatonProgramFile *file)
{
	char		notes[NOTES_SIZE];

	ElfW(Ehdr) header;

	memset(file, 0, sizeof(*file));
	file->is_there = 1;
	file->device = status->st_dev;
	file->inode = status->st_ino;
	file->size = status->st_size;
	file->changed_ns = status->st_ctim.tv_sec * INT64CONST(1000000000) + status->st_ctim.tv_nsec;

	if (fd < 0 ||
		pread(fd, &header, sizeof(header), 0) != sizeof(header) ||
		memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
		header.e_phentsize != sizeof(ElfW(Phdr)))
		return;
	for (int i = 0; i < Min(header.e_phnum, SEGMENTS); i++)
	{
		ElfW(Phdr) segment;
		ssize_t		length;

		if (pread(fd, &segment, sizeof(segment), header.e_phoff + i * sizeof(segment)) != sizeof(segment))
			return;
		if (segment.p_type != PT_NOTE)
			continue;
		length = pread(fd, notes, Min(segment.p_filesz, sizeof(notes)), segment.p_offset);
		if (length > 0)
			read_notes(notes, length, file);
	}
}

/* The same of a path.  A file that may be run need not be readable. */
static bool
inspect_path(const char *path, BatonProgramFile *file)
{
	struct stat status;
	int			fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	bool		is_there = (fd >= 0 ? fstat(fd, &status) : stat(path, &status)) == 0;

	if (is_there)
		inspect(fd, &status, file);
	else
		memset(file, 0, sizeof(*file));
	if (fd >= 0)
		close(fd);
	return is_there;
}

static bool
inspect_kept(BatonProgramFile *file)
{
	struct stat status;

	if (kept_fd < 0 || fstat(kept_fd, &status) != 0)
		return false;
	inspect(kept_fd, &status, file);
	return file->layout_version == BATON_LAYOUT_VERSION;
}

void
baton_program_keep(void)
{
	BatonProgramFile file;

	Assert(!IsUnderPostmaster);
	if (!find_program(kept_path))
		return;					/* the launcher says so */
	kept_fd = open(kept_path, O_RDONLY | O_CLOEXEC);
	if (kept_fd < 0)
		return;
	if (!inspect_kept(&file))
	{
		close(kept_fd);
		kept_fd = -1;
		return;
	}
	/* fd.c must know of a descriptor that stays open (set_max_safe_fds) */
	ReserveExternalFD();
}

bool
baton_program_is_same(const BatonProgramFile *one, const BatonProgramFile *other)
{
	return one->device == other->device && one->inode == other->inode &&
		one->size == other->size && one->changed_ns == other->changed_ns;
}

bool
baton_program_choose(BatonProgram *program)
{
	const char *restart = gettext_noop("Restart the server to use the installed program.");
	bool		is_found = find_program(program->path) && inspect_path(program->path, &program->file);

	program->fd = -1;
	if (is_found &&
		(program->file.layout_version == BATON_LAYOUT_VERSION || program->file.layout_version == 0))
		return true;

	if (inspect_kept(&program->file))
	{
		if (is_found)
			ereport(LOG,
					(errmsg("pg_baton's dispatcher is started from the program of the server's start: the installed one is of another layout"),
					 errdetail("Program \"%s\" does not fit the library that the server runs.", program->path),
					 errhint("%s", restart)));
		else
			ereport(LOG,
					(errmsg("pg_baton's dispatcher is started from the program of the server's start: it is not installed any more"),
					 errdetail("Program \"%s\" is not found.", baton_dispatcher_program)));
		program->fd = kept_fd;
		strlcpy(program->path, kept_path, sizeof(program->path));
		return true;
	}

	if (is_found)
		ereport(LOG,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("pg_baton's dispatcher program \"%s\" is of another layout than the library that the server runs",
						program->path),
				 errhint("Install library and program of one build, and restart the server.")));
	else
		ereport(LOG,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("could not find pg_baton's dispatcher program \"%s\"",
						baton_dispatcher_program),
				 errhint("Set pg_baton.dispatcher_program to the path of \"baton-dispatcher\".")));
	return false;
}

bool
baton_program_beside(const char *name, BatonProgram *program, const char **problem)
{
	program->fd = -1;
	strlcpy(program->path, name, sizeof(program->path));
	*problem = gettext_noop("It is not found beside \"baton-dispatcher\".");
	if (!find_program(program->path))
		return false;
	get_parent_directory(program->path);
	join_path_components(program->path, program->path, name);
	if (!is_program(program->path) || !inspect_path(program->path, &program->file))
		return false;
	*problem = gettext_noop("It is of another layout than the library that the server runs.");
	return program->file.layout_version == BATON_LAYOUT_VERSION ||
		program->file.layout_version == 0;
}

/* ----------------------------------------------------------------
 *		What runs, and what is installed, for SQL.
 *
 * The launcher writes what it started into CONTROL, where any process could
 * write it: it is shown, and decides nothing.  No dispatcher need answer.
 */

#define BUILD_COLUMNS 16

/* The longest wait for the launcher and the dispatcher that it starts. */
#define RESTART_LIMIT_MS 60000
#define RESTART_STEP_MS 20

PG_FUNCTION_INFO_V1(pg_baton_get_build);
PG_FUNCTION_INFO_V1(pg_baton_restart_dispatcher);

/* A text of CONTROL; NULL if it is empty. */
static Datum
text_of(const uint8 *bytes, Size size, bool *is_null)
{
	char text[	64];

	strlcpy(text, (const char *) bytes, Min(size, sizeof(text)));
	*is_null = text[0] == '\0' || !pg_is_ascii(text);

	return *is_null ? (Datum) 0 : CStringGetTextDatum(text);
}

static Datum
layout_of(const BatonProgramFile *file, bool *is_null)
{
	*is_null = file->layout_version == 0;
	return *is_null ? (Datum) 0 : CStringGetTextDatum(psprintf("0x%08x", file->layout_version));
}

/* Three columns: version, layout, build. */
static void
put_file(const BatonProgramFile *file, Datum *values, bool *nulls)
{
	values[0] = text_of(file->version, sizeof(file->version), &nulls[0]);
	values[1] = layout_of(file, &nulls[1]);
	values[2] = text_of(file->build, sizeof(file->build), &nulls[2]);
}

static const char *
end_text(uint32 reason, int status)
{
	switch (reason)
	{
		case BATON_ENDED_ASKED:
			return "asked for";
		case BATON_ENDED_HUNG:
			return "made no progress";
		case BATON_ENDED_BY_ITSELF:
			return wait_result_to_str(status);
		case BATON_ENDED_UNKNOWN:
			return "unknown";
		default:
			return NULL;
	}
}

static Datum
time_of(int64 time, bool *is_null)
{
	*is_null = time == 0;
	return TimestampTzGetDatum(baton_sound_timestamp(time));
}

Datum
pg_baton_get_build(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[BUILD_COLUMNS] = {0};
	bool		nulls[BUILD_COLUMNS] = {false};
	BatonControlHeader *control = BatonControlMemory;
	BatonProgramFile running;
	BatonProgramFile installed;
	BatonProgramFile library = {.layout_version = BATON_LAYOUT_VERSION};
	char		path[MAXPGPATH];
	const char *ended;
	bool		is_up;
	bool		is_installed;
	bool		differs;
	int			at = 0;

	InitMaterializedSRF(fcinfo, 0);
	baton_require_control();
	running = control->program;
	running.version[sizeof(running.version) - 1] = '\0';
	running.build[sizeof(running.build) - 1] = '\0';
	is_up = control->dispatcher_pid != 0;
	is_installed = find_program(path) && inspect_path(path, &installed);

	values[at++] = CStringGetTextDatum(PG_BATON_VERSION);
	values[at] = layout_of(&library, &nulls[at]);
	at++;
	values[at++] = TimestampTzGetDatum(PgStartTime);

	nulls[at] = !is_up;
	values[at++] = Int32GetDatum((int32) control->dispatcher_pid);
	put_file(&running, &values[at], &nulls[at]);
	at += 3;
	values[at] = time_of(control->dispatcher_started_at, &nulls[at]);
	at++;
	if (!is_up)
		memset(&nulls[at - 4], true, 4);

	nulls[at] = !is_installed;
	if (is_installed)
	{
		values[at] = CStringGetTextDatum(path);
		put_file(&installed, &values[at + 1], &nulls[at + 1]);
	}
	else
		memset(&nulls[at], true, 4);
	at += 4;

	/* builds of the same ID are the same program, whichever file it is in */
	nulls[at] = !is_up || !is_installed;
	differs = !nulls[at] && !baton_program_is_same(&running, &installed) &&
		(installed.build[0] == '\0' || running.layout_version != installed.layout_version ||
		 strncmp((char *) running.build, (char *) installed.build, sizeof(running.build)) != 0);
	values[at] = BoolGetDatum(differs);
	at++;

	values[at++] = Int64GetDatum(Max((int64) control->dispatcher_starts - 1, 0));
	ended = end_text(control->end_reason, (int) control->end_status);
	nulls[at] = ended == NULL;
	values[at++] = ended == NULL ? (Datum) 0 : CStringGetTextDatum(ended);
	values[at] = time_of(control->ended_at, &nulls[at]);
	at++;
	Assert(at == BUILD_COLUMNS);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	return (Datum) 0;
}

/*
 * Has the launcher replace the dispatcher, and waits until the next one serves.
 * Returns its process ID.
 */
Datum
pg_baton_restart_dispatcher(PG_FUNCTION_ARGS)
{
	BatonControlHeader *control = BatonControlMemory;
	PGPROC	   *launcher;
	uint32		request;
	int64		give_up_us = baton_monotonic_us() + RESTART_LIMIT_MS * INT64CONST(1000);

	baton_require_control();
	request = pg_atomic_add_fetch_u32(baton_atomic_u32(control->restarts_wanted), 1);
	launcher = BackendPidGetProc((int) control->launcher_pid);
	if (launcher != NULL)
		SetLatch(&launcher->procLatch);

	for (;;)
	{
		/* more may have been asked for, and one start is for all of them */
		if ((int32) (*(volatile uint32 *) &control->restarts_done - request) >= 0 &&
			control->beat_us != 0 && control->dispatcher_pid != 0)
			PG_RETURN_INT32((int32) control->dispatcher_pid);
		if (baton_monotonic_us() >= give_up_us)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("pg_baton's dispatcher has not been replaced"),
					 errhint("The server's log says why.")));
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 RESTART_STEP_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}
