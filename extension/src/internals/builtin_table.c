/*-------------------------------------------------------------------------
 *
 * builtin_table.c
 *		Built-in functions of SQL that are to be ours.
 *
 * fmgr_builtins (fmgrtab.c, generated; declared in fmgrtab.h for all) is the
 * table through which fmgr.c calls built-in functions by OID (fmgr_isbuiltin,
 * which fmgr_info asks first of all) and LANGUAGE internal functions by name
 * (fmgr_lookupByName): by an entry's `func`.  An entry that was changed in the
 * postmaster is what all its children have.  C code that calls such a function
 * directly still gets the original, as we do.
 *
 * The table is constant: it lies where the program was made read-only after
 * relocation (RELRO), or in constant data.  The pages are made writable for the
 * change; never any from which code is run.
 *
 * Compiled expressions do not go by the table: llvm_function_reference
 * (llvmjit.c) has a function of LANGUAGE internal called by its symbol, unless
 * fmgr_symbol (fmgr.c) says that it needs a hook (needs_fmgr_hook), when
 * fmgr_security_definer is called, which looks the function up as fmgr_info
 * does.  fmgr_info itself does not ask that hook for built-in functions.
 *
 * Checked in 15 to 18.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include "builtin_table.h"
#include "utils/fmgrtab.h"

/* Of those who have had some replaced: process IDs, SYSTEM_USER, statistics. */
#define MOST_LISTS 3

static struct
{
	const BatonBuiltin *builtins;
	int			count;
}			replaced[MOST_LISTS];
static int	replaced_lists = 0;

/* Where a part of the program lies, and whether it may be written. */
typedef struct Place
{
	uintptr_t	start;
	uintptr_t	end;
	bool		found;			/* in data, or constant data */
	bool		writable;		/* now */
} Place;

/* dl_iterate_phdr() callback; the first object is the program itself. */
static int
find_place(struct dl_phdr_info *info, size_t size, void *argument)
{
	Place	   *place = argument;

	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		const		ElfW(Phdr) * part = &info->dlpi_phdr[i];
		uintptr_t	start = info->dlpi_addr + part->p_vaddr;
		uintptr_t	end = start + part->p_memsz;

		if (part->p_type == PT_LOAD && place->start >= start && place->end <= end)
		{
			place->found = (part->p_flags & PF_X) == 0;
			place->writable = (part->p_flags & PF_W) != 0;
		}
	}
	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		const		ElfW(Phdr) * part = &info->dlpi_phdr[i];
		uintptr_t	start = info->dlpi_addr + part->p_vaddr;

		if (part->p_type == PT_GNU_RELRO && place->start >= start &&
			place->end <= start + part->p_memsz)
			place->writable = false;
	}
	return 1;
}

static FmgrBuiltin *
find_builtin(const BatonBuiltin *builtin)
{
	uint16		index;

	if (builtin->oid > fmgr_last_builtin_oid)
		return NULL;
	index = fmgr_builtin_oid_index[builtin->oid];
	if (index == InvalidOidBuiltinMapping || index >= fmgr_nbuiltins ||
		fmgr_builtins[index].foid != builtin->oid ||
		strcmp(fmgr_builtins[index].funcName, builtin->name) != 0 ||
		fmgr_builtins[index].func != builtin->original)
		return NULL;
	return unconstify(FmgrBuiltin *, &fmgr_builtins[index]);
}

bool
baton_builtin_is_replaced(Oid function)
{
	if (function > fmgr_last_builtin_oid)
		return false;
	for (int list = 0; list < replaced_lists; list++)
		for (int i = 0; i < replaced[list].count; i++)
			if (replaced[list].builtins[i].oid == function)
				return true;
	return false;
}

const char *
baton_builtins_replace(const BatonBuiltin *builtins, int count)
{
	Size		page = sysconf(_SC_PAGESIZE);
	Place		place = {
		.start = (uintptr_t) &fmgr_builtins[0],
		.end = (uintptr_t) &fmgr_builtins[fmgr_nbuiltins]
	};
	uintptr_t	start;
	Size		length;

	for (int i = 0; i < count; i++)
		if (OidIsValid(builtins[i].oid) && find_builtin(&builtins[i]) == NULL)
			return psprintf("function \"%s\" is not as expected", builtins[i].name);

	dl_iterate_phdr(find_place, &place);
	if (!place.found)
		return "the table of built-in functions is not in the program's data";

	start = TYPEALIGN_DOWN(page, place.start);
	length = TYPEALIGN(page, place.end) - start;
	if (!place.writable &&
		mprotect((void *) start, length, PROT_READ | PROT_WRITE) != 0)
		return psprintf("the table of built-in functions cannot be written: %m");
	for (int i = 0; i < count; i++)
		if (OidIsValid(builtins[i].oid))
			find_builtin(&builtins[i])->func = builtins[i].ours;
	if (!place.writable && mprotect((void *) start, length, PROT_READ) != 0)
		ereport(LOG,
				(errcode(ERRCODE_SYSTEM_ERROR),
				 errmsg("the table of built-in functions cannot be made read-only again: %m")));

	Assert(replaced_lists < MOST_LISTS);
	replaced[replaced_lists].builtins = builtins;
	replaced[replaced_lists++].count = count;
	return NULL;
}
