/*-------------------------------------------------------------------------
 *
 * layout.c
 *		Asserts, at build time, that this compiler lays out the structures
 *		of baton_shared.h as that file's numbers say.  The dispatcher asserts
 *		the same numbers (layout.rs).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "control.h"

#define CHECK_SIZE(type, size) \
	StaticAssertDecl(sizeof(type) == (size), #type " has another size than baton_shared.h says")
#define CHECK_OFFSET(type, field, offset) \
	StaticAssertDecl(offsetof(type, field) == (offset), #type "." #field " is not where baton_shared.h says")

CHECK_OFFSET(BatonControl, secret, BATON_CONTROL_OFF_SECRET);
CHECK_OFFSET(BatonControl, settings_generation, BATON_CONTROL_OFF_SETTINGS_GENERATION);
CHECK_OFFSET(BatonControl, dispatcher_epoch, BATON_CONTROL_OFF_DISPATCHER_EPOCH);
CHECK_OFFSET(BatonControl, login_generation, BATON_CONTROL_OFF_LOGIN_GENERATION);
CHECK_OFFSET(BatonControl, settings_marks, BATON_CONTROL_OFF_SETTINGS_MARKS);
CHECK_OFFSET(BatonControl, room_ticket, BATON_CONTROL_OFF_ROOM_TICKET);
CHECK_OFFSET(BatonControl, next_pid, BATON_CONTROL_OFF_NEXT_PID);
CHECK_OFFSET(BatonControl, identity_offset, BATON_CONTROL_OFF_IDENTITY_OFFSET);
CHECK_OFFSET(BatonControl, tickets, BATON_CONTROL_OFF_TICKETS);
CHECK_OFFSET(BatonControl, names_generation, BATON_CONTROL_OFF_NAMES_GENERATION);
CHECK_OFFSET(BatonControl, login_changes, BATON_CONTROL_OFF_LOGIN_CHANGES);
CHECK_OFFSET(BatonControl, tenant_offset, BATON_CONTROL_OFF_TENANT_OFFSET);
CHECK_SIZE(BatonBackendSlot, BATON_BACKEND_SLOT_SIZE);
CHECK_OFFSET(BatonBackendSlot, cancel, BATON_BACKEND_OFF_CANCEL);
CHECK_OFFSET(BatonBackendSlot, state_since_us, BATON_BACKEND_OFF_STATE_SINCE);
CHECK_OFFSET(BatonBackendSlot, pool, BATON_BACKEND_OFF_POOL);
CHECK_OFFSET(BatonBackendSlot, retire, BATON_BACKEND_OFF_RETIRE);
CHECK_OFFSET(BatonBackendSlot, served, BATON_BACKEND_OFF_SERVED);
CHECK_SIZE(BatonPoolSlot, BATON_POOL_SLOT_SIZE);
CHECK_SIZE(BatonTenantSlot, BATON_TENANT_SLOT_SIZE);
CHECK_OFFSET(BatonTenantSlot, memory_left, BATON_TENANT_OFF_MEMORY_LEFT);
CHECK_OFFSET(BatonTenantSlot, completed, BATON_TENANT_OFF_COMPLETED);
CHECK_OFFSET(BatonTenantSlot, user_name, BATON_TENANT_OFF_USER_NAME);
CHECK_SIZE(BatonSessionSlot, BATON_SESSION_SLOT_SIZE);
CHECK_OFFSET(BatonSessionSlot, state, BATON_SESSION_OFF_STATE);
CHECK_OFFSET(BatonSessionSlot, transactions, BATON_SESSION_OFF_TRANSACTIONS);
CHECK_SIZE(BatonTls, BATON_TLS_SIZE);
CHECK_SIZE(BatonIdentity, BATON_IDENTITY_SIZE);
CHECK_OFFSET(BatonIdentity, pid, BATON_IDENTITY_OFF_PID);
CHECK_OFFSET(BatonIdentity, peer_address, BATON_IDENTITY_OFF_PEER_ADDRESS);
CHECK_OFFSET(BatonIdentity, application_name, BATON_IDENTITY_OFF_APPLICATION_NAME);
CHECK_SIZE(BatonStatementCounter, BATON_COUNTER_SLOT_SIZE);
CHECK_SIZE(BatonSessionRecord, BATON_RECORD_SIZE);
CHECK_OFFSET(BatonSessionRecord, cancel_pid, BATON_RECORD_OFF_CANCEL_PID);
CHECK_OFFSET(BatonSessionRecord, login_time_us, BATON_RECORD_OFF_LOGIN_TIME);
CHECK_OFFSET(BatonSessionRecord, peer_family, BATON_RECORD_OFF_PEER_FAMILY);
CHECK_OFFSET(BatonSessionRecord, peer_address, BATON_RECORD_OFF_PEER_ADDRESS);
CHECK_OFFSET(BatonSessionRecord, peer_scope, BATON_RECORD_OFF_PEER_SCOPE);
CHECK_OFFSET(BatonSessionRecord, authenticated, BATON_RECORD_OFF_AUTHENTICATED);
StaticAssertDecl(BATON_ARENA_OFF_ACCOUNTS + 8 * BATON_ARENA_ACCOUNTS == BATON_ARENA_HEADER_SIZE,
				 "the accounts end with the header");
CHECK_OFFSET(BatonSessionRecord, account, BATON_RECORD_OFF_ACCOUNT);
CHECK_OFFSET(BatonSessionRecord, start_settings, BATON_RECORD_OFF_START_SETTINGS);
CHECK_OFFSET(BatonSessionRecord, settings_marks, BATON_RECORD_OFF_SETTINGS_MARKS);
CHECK_OFFSET(BatonSessionRecord, first_statement,
			 BATON_RECORD_OFF_FIRST_STATEMENT);
CHECK_OFFSET(BatonSessionRecord, cancel_key, BATON_RECORD_OFF_CANCEL_KEY);
CHECK_SIZE(BatonItem, BATON_ITEM_SIZE);
CHECK_SIZE(BatonEntry, BATON_ENTRY_HEADER_SIZE);
CHECK_SIZE(BatonFrame, BATON_FRAME_HEADER_SIZE);

/* what baton_atomic_u32 and baton_atomic_u64 (control.h) rely on */
CHECK_SIZE(pg_atomic_uint32, sizeof(uint32_t));
CHECK_SIZE(pg_atomic_uint64, sizeof(uint64_t));
